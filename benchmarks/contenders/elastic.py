"""A training script as users of torchrun write it: DDP over Gloo, rank 0 saves a checkpoint every N steps, all load it at their start."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification


class Rows:
    """Tokenized reviews: flat arrays in a folder, mapped."""

    def __init__(self, folder: Path) -> None:
        self.ids, self.offsets, self.labels = (
            np.load(folder / f"train.{name}.npy", mmap_mode="r") for name in ("input_ids", "offsets", "labels")
        )

    def batch(self, step: int, size: int, rank: int, ranks: int) -> dict[str, torch.Tensor]:
        """The part of ``rank`` in the batch of ``step``, padded to its longest row."""
        epoch, place = divmod(step, len(self.labels) // size)
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(epoch))
        rows = order[place * size : (place + 1) * size][rank::ranks].tolist()
        texts = [torch.from_numpy(self.ids[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        labels = torch.tensor([int(self.labels[row]) for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="fields of the BertConfig, JSON")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="metrics.jsonl and checkpoint.pt are written there")
    parser.add_argument("--batch", type=int, required=True, help="rows of a step, over all ranks")
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(BertForSequenceClassification(BertConfig(**options.config)).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)
    rows, step = Rows(options.data), 0
    checkpoint = options.output / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    with (options.output / "metrics.jsonl").open("a", buffering=1) as metrics:
        while True:
            loss = model(**rows.batch(step, options.batch, rank, ranks)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank != 0:
                continue
            metrics.write(json.dumps({"step": step, "loss": loss.item(), "time": time.time()}) + "\n")
            if step % options.every == 0:
                beside = checkpoint.with_suffix(".new")
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
                os.replace(beside, checkpoint)


if __name__ == "__main__":
    main()
