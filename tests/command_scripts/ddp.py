"""A plain loop with DistributedDataParallel. Checkpoints get their name when they are whole; steps are told to ``LMJ_PROGRESS_URL``.

Nothing here saves a random state, so there is no dropout: then resuming is bit-exact. The batch of a step is a function of the step, and of no
number of processes, so a run whose processes change their number sees the same samples.
"""

import argparse
import json
import os
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from gate import pass_gate
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

BATCH = 12
SAMPLES = 120


def tell(step: int, steps: int, loss: float) -> None:
    """Say how far it is, where somebody listens."""
    if url := os.environ.get("LMJ_PROGRESS_URL"):
        body = json.dumps({"step": step, "steps": steps, "loss": loss}).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=5).close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=os.environ.get("LMJ_OUTPUT_DIR"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    rows = torch.randn(SAMPLES, 16)
    labels = (rows.sum(1) > 0).long()
    bare = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, checkpoint = 0, output / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    with (output / f"samples-{rank}.jsonl").open("a", buffering=1) as seen:
        while step < args.steps:
            epoch, place = divmod(step, SAMPLES // BATCH)
            order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
            mine = order[place * BATCH : (place + 1) * BATCH][rank::ranks]
            # A part of the batch may have a row more than another: the sum of all rows counts, not the mean of means.
            loss = torch.nn.functional.cross_entropy(model(rows[mine]), labels[mine], reduction="sum") * ranks / BATCH
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            seen.write(json.dumps({"step": step, "ranks": ranks, "samples": mine.tolist()}) + "\n")
            if rank == 0:
                tell(step, args.steps, loss.item())
                if step % args.every == 0:
                    beside = checkpoint.with_suffix(".partial")
                    torch.save({"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
                    os.replace(beside, checkpoint)
            pass_gate(step)
    if rank == 0:
        save_file(bare.state_dict(), str(output / "model.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
