"""Fine-tunes a classifier of texts in CSV files with transformers' Trainer, in the shape of its ``run_glue.py``.

Resuming is bit-exact here with dropout, because the Trainer saves each process's random state, with two processes: a sum of two numbers has one
order. With more, DDP adds gradients in other buckets in the first step after a restart than in the same step of a run that was not disturbed.
"""

import os
from dataclasses import dataclass, field

import transformers
from datasets import load_dataset
from gate import pass_gate
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class DataTrainingArguments:
    train_file: str = field(metadata={"help": "CSV with the columns sentence and label"})
    max_seq_length: int = field(default=16)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=32)
    num_hidden_layers: int = field(default=2)
    dropout: float = field(default=0.1)


class Gate(TrainerCallback):
    """Where the test has it wait."""

    trainer: Trainer

    def on_step_end(self, args, state, control, **kwargs):
        managers = [getattr(each, "jit_manager", None) for each in self.trainer.callback_handler.callbacks]
        pass_gate(state.global_step, lambda: any(m is not None and m.is_checkpoint_requested for m in managers))


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    transformers.utils.logging.set_verbosity_warning()
    set_seed(training_args.seed)

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)

    raw = load_dataset("csv", data_files={"train": data_args.train_file})
    words = sorted({word for text in raw["train"]["sentence"] for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokens = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokens.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=model_args.hidden_size,
        num_hidden_layers=model_args.num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=2 * model_args.hidden_size,
        max_position_embeddings=data_args.max_seq_length,
        hidden_dropout_prob=model_args.dropout,
        attention_probs_dropout_prob=model_args.dropout,
    )
    model = BertForSequenceClassification(config)

    def preprocess(examples):
        return tokenizer(examples["sentence"], max_length=data_args.max_seq_length, truncation=True)

    with training_args.main_process_first(desc="dataset map pre-processing"):
        raw = raw.map(preprocess, batched=True)

    gate = Gate()
    trainer = gate.trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=raw["train"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[gate],
    )

    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_state()


if __name__ == "__main__":
    main()
