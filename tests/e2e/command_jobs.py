"""Scripts of users (``tests/command_scripts``), as ``torchrun`` runs them and as jobs of ``strategy: Command``."""

from __future__ import annotations

import os
import shutil
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
        *(
            "--learning_rate",
            "1e-2",
            "--warmup_steps",
            "3",
            "--logging_steps",
            "1",
            "--disable_tqdm",
            "True",
            "--report_to",
            "none",
        ),
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

    def pid(self, rank: int) -> int:
        """The process that is ``rank``, since its first step."""
        return int(self._lines(rank)[-1].split()[2])

    def alive(self) -> set[int]:
        """Processes of the script, of any time, that are still there."""
        files = [file.read_text().splitlines() for file in self.folder.glob("steps-*")]
        pids = {int(line.split()[2]) for lines in files for line in lines}
        return {pid for pid in pids if Path(f"/proc/{pid}").exists()}

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
                wait_until(lambda: not self.gate.alive(), seconds=30)

    def whole(self) -> None:
        """Run it to its end. Now and then torch aborts where C++ ends its threads, with all done: then it is run anew.

        One that goes on from an earlier run is not, because what that left would be gone: what it has written counts.
        """
        for _ in range(1 if self.gate.steps() else 3):
            with self.started() as process:
                said, _ = process.communicate(timeout=DEADLINE)
            if process.returncode == 0 or "(SIGABRT)" not in said:
                break
            if self.gate.steps()[-1:] == [self.script.steps] and (self.output / "model.safetensors").exists():
                return
            shutil.rmtree(self.output)
            shutil.rmtree(self.gate.folder)
            self.gate = Gate(self.folder / "gate")
        assert process.returncode == 0, said

    def weights(self) -> dict[str, torch.Tensor]:
        return load_weights(self.output)


def load_weights(output: Path) -> dict[str, torch.Tensor]:
    """The final weights that a script saved."""
    found: dict[str, torch.Tensor] = load_file(output / "model.safetensors")
    return found


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """To the bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


class CommandJob(Job):
    """A job of ``strategy: Command`` in ``folder`` that runs ``script``. Two pods, and it does not go on with fewer, unless ``spec`` says it."""

    def __init__(self, folder: Path, script: Script, **spec: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.script = folder, script
        self.file, self.output = folder / "job.yaml", folder / "out"
        self.gate = Gate(folder / "gate")
        write_rows(folder / "train.csv")
        self.file.write_text(yaml.safe_dump(command_document(script.words(self.output), str(self.output), **spec)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lmj_operator.cli.main", "run", str(self.file), "--plain", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=environment(self.gate.folder))

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """``lmj run``; nothing is left of it after the block."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            wait_until(lambda: not self.processes() and not self.gate.alive(), seconds=30)

    def finish(self, process: subprocess.Popen[str]) -> str:
        """What the run said; it succeeded."""
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, out + err
        assert self.status()["phase"] == "Succeeded"
        return out

    def launcher(self, rank: int) -> int:
        """Process id of what starts the script's processes of ``rank``."""
        return self._found("launch", rank)

    def weights(self) -> dict[str, torch.Tensor]:
        return load_weights(self.output)


def command_document(args: list[str], output: str, **spec: Any) -> dict[str, Any]:
    """A job of two pods with one process each. ``spec``: parts that are other than here, or more."""
    parts: dict[str, Any] = {
        "strategy": "Command",
        "command": {"args": args, "threads": 1},
        "dataParallel": {"replicas": 2, "minReplicas": 2},
        "recovery": {"backoffSeconds": 0.1},
        "output": {"path": output},
    }
    for name, value in spec.items():
        parts[name] = {**parts.get(name, {}), **value} if isinstance(value, dict) else value
    return {
        "apiVersion": "lmj.dev/v1alpha1",
        "kind": "LiveMigrationJob",
        "metadata": {"name": "script"},
        "spec": parts,
    }
