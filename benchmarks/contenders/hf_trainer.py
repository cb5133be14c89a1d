"""``transformers.Trainer`` on a saved model and rows of text: ``hf_trainer.py JOB.json OUT.jsonl`` (a line a step, then one of the process).

What is in the job is used as the project uses it: rows of one length, one thread count, fused AdamW, clipping, dropout, adapters by peft.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset


class Times(transformers.TrainerCallback):  # type: ignore[misc]
    """When each step ended."""

    def __init__(self, out: Path) -> None:
        self._out = out.open("w", buffering=1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._out.write(json.dumps({"step": state.global_step, "time": time.time()}) + "\n")

    def finish(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")


def main(job: dict[str, Any], out: Path) -> None:
    torch.set_num_threads(job["threads"])
    language = job["task"] == "CausalLM"
    kind = transformers.AutoModelForCausalLM if language else transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(job["source"], dtype=torch.float32)
    if job["lora"] is not None:
        from peft import LoraConfig, TaskType, get_peft_model

        targets = job["lora"]["targetModules"]
        config = {"r": job["lora"]["r"], "lora_alpha": job["lora"]["alpha"], "target_modules": targets}
        model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM if language else TaskType.SEQ_CLS, **config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["source"])
    rows = [json.loads(line) for line in Path(job["data"]).read_text().splitlines()]
    tokens = tokenizer([row["text"] for row in rows], truncation=True, max_length=job["length"])
    columns = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    if language:
        collate: Any = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    else:
        columns["labels"] = [row["label"] for row in rows]
        collate = transformers.DataCollatorWithPadding(tokenizer)
    arguments = transformers.TrainingArguments(
        output_dir=str(out.with_suffix("")),
        max_steps=job["steps"],
        per_device_train_batch_size=job["batch"],
        learning_rate=1e-5,
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    times = Times(out)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), data_collator=collate, callbacks=[times]
    )
    trainer.train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times.finish(trained=sum(p.numel() for p in model.parameters() if p.requires_grad), peak_mb=peak * 1024 / 1e6)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
