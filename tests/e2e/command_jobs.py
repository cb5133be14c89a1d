"""Scripts of users (``tests/command_scripts``), as ``torchrun`` runs them and as jobs of ``strategy: Command``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from jobs import DEADLINE, WORDS, Job, wait_until
from safetensors.torch import load_file

SCRIPTS = Path(__file__).parents[1] / "command_scripts"
OUTPUT = "{output}"
"""In a script's arguments: the folder for all that it writes."""


@dataclass(frozen=True)
class Script:
    """A script and its arguments."""

    file: str
    args: tuple[str, ...]
    steps: int
    """Steps of two processes."""
    found_by_itself: bool = True
    """Whether it looks for its newest checkpoint; else it is to get ``--resume_from_checkpoint``."""
    processes: int = 2
    """That its bits are those of."""

    def words(self, output: Path) -> list[str]:
        return [str(SCRIPTS / self.file), *(word.replace(OUTPUT, str(output)) for word in self.args)]


GLUE_STEPS = 30
GLUE = Script(
    "glue.py",
    (
        *("--train_file", "train.csv", "--output_dir", OUTPUT, "--do_train", "--use_cpu", "--seed", "5"),
        *("--per_device_train_batch_size", "4", "--max_steps", str(GLUE_STEPS), "--save_steps", "5", "--save_total_limit", "3"),
        *("--learning_rate", "1e-2", "--warmup_steps", "3", "--logging_steps", "1", "--disable_tqdm", "True", "--report_to", "none"),
        *("--enable_jit_checkpoint", "True"),
    ),
    GLUE_STEPS,
)
ACCELERATED = Script("accelerated.py", ("--output_dir", OUTPUT, "--checkpointing_steps", "5", "--num_epochs", "2"), 40)
DDP = Script("ddp.py", ("--output", OUTPUT, "--steps", "40", "--every", "5"), 40)
ALL = {"trainer": GLUE, "accelerate": ACCELERATED, "ddp": DDP}


def write_rows(file: Path) -> None:
    """Sentences, the same in every run."""
    lines = ["sentence,label"]
    for row in range(96):
        words = [WORDS[(row * 7 + place * (3 + row % 5)) % len(WORDS)] for place in range(6)]
        words.insert(row % 7, ("bad", "good")[row % 2])
        lines.append(f"{' '.join(words)},{row % 2}")
    file.write_text("\n".join(lines) + "\n")


def environment(gate: Path) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    quiet = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **threads, **quiet, "GATE": str(gate), "HF_HOME": str(gate.parent / "huggingface")}


@dataclass
class Gate:
    """Where the processes of a script wait."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self, step: int) -> None:
        """Nobody does a step after ``step``."""
        beside = self.folder / "closing"
        beside.write_text(str(step))
        beside.rename(self.folder / "closed")

    def open(self) -> None:
        """All go on. What was said at the gate is forgotten."""
        (self.folder / "closed").unlink(missing_ok=True)
        for file in self.folder.glob("[0-9]*-*"):
            file.unlink(missing_ok=True)

    def steps(self, rank: int = 0) -> list[int]:
        """All that ``rank`` has done, in the order of time: what was done again is there again."""
        return [int(line.split()[0]) for line in self._lines(rank)]

    def worlds(self, rank: int = 0) -> list[int]:
        """The world size of each of them."""
        return [int(line.split()[1]) for line in self._lines(rank)]

    def _lines(self, rank: int) -> list[str]:
        file = self.folder / f"steps-{rank}"
        return file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []

    def reached(self, step: int, *ranks: int) -> bool:
        """Whether ``ranks`` wait there after ``step``."""
        return all((self.folder / f"{rank}-{step}").exists() for rank in ranks)


@dataclass
class Run:
    """A script in a folder of its own, with what it reads, started by ``torchrun``."""

    folder: Path
    script: Script
    processes: int = 2
    output: Path = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.output = self.folder / "out"
        self.gate = Gate(self.folder / "gate")
        write_rows(self.folder / "train.csv")

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """``torchrun`` of it; nothing is left of it after the block."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.processes), "--master-port", "0"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *self.script.words(self.output)]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment(self.gate.folder),
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                wait_until(lambda: not self.pids(), seconds=30)

    def whole(self) -> None:
        """Run it to its end."""
        with self.started() as process:
            said, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, said

    def pids(self) -> dict[int, int]:
        """Process ids of the script by rank."""
        return pids_of(self.script.file, self.output)

    def weights(self) -> dict[str, torch.Tensor]:
        return load_weights(self.output)


def pids_of(file: str, output: Path) -> dict[int, int]:
    """Process ids by ``RANK`` of those that run ``file`` for ``output``."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if not any(word.endswith(file) for word in words) or not any(str(output) in word for word in words):
            continue
        rank = next((int(each[5:]) for each in variables if each.startswith(b"RANK=")), None)
        if rank is not None:
            found[rank] = int(entry.name)
    return found


def load_weights(output: Path) -> dict[str, torch.Tensor]:
    """The final weights that a script saved."""
    found: dict[str, torch.Tensor] = load_file(output / "model.safetensors")
    return found


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """To the bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
