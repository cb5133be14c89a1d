"""A loop with Accelerate, in the shape of its ``complete_nlp_example.py``: ``save_state`` each N steps, ``load_state`` of the newest.

What it saves has each process's random state, so resuming is bit-exact with dropout. (With two processes; see ``glue.py``.) At SIGTERM all
processes save at the same step: they tell one another of the signal.
"""

import argparse
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from gate import pass_gate
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: it got its name when it was."""
    found = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return max(found, key=lambda path: int(path.name[5:]), default=None)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    beside = folder / f"step_{step}.partial"
    if accelerator.is_main_process and beside.exists():
        shutil.rmtree(beside)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(beside))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(beside, folder / f"step_{step}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--checkpointing_steps", type=int, default=10)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)

    accelerator = Accelerator(cpu=True)
    set_seed(7)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    rows = torch.randn(160, 16)
    labels = (rows.sum(1) > 0).long()
    loader = DataLoader(TensorDataset(rows, labels), batch_size=args.batch_size, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    total = args.num_epochs * (len(loader) // accelerator.num_processes)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step = 0
    if (checkpoint := newest(args.output_dir)) is not None:
        accelerator.load_state(str(checkpoint))
        step = int(checkpoint.name[5:])
    first, done_in_it = divmod(step, len(loader))
    for epoch in range(first, args.num_epochs):
        loader.set_epoch(epoch)
        skipped = done_in_it if epoch == first else 0
        active = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        model.train()
        for inputs, targets in active:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            pass_gate(step, lambda: bool(told))
            asked = accelerator.reduce(torch.tensor([float(bool(told))]), reduction="sum").item() > 0
            if asked or step % args.checkpointing_steps == 0:
                save(accelerator, args.output_dir, step)
            if asked:
                accelerator.print(f"saved at step {step}", flush=True)
                accelerator.end_training()
                sys.exit(0)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        save_file(accelerator.unwrap_model(model).state_dict(), str(args.output_dir / "model.safetensors"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
