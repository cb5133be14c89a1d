"""A job small enough to train in seconds, and its processes."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lmj_api.run import Run
from lmj_api.spec import LiveMigrationJob

WORDS = ("film", "plot", "very", "actor", "fine", "dull", "long", "short", "scene", "story")
DEADLINE = 180.0
"""Seconds that anything in these tests may take."""
MANY = 100
LOOK_SECONDS = 2.0
"""Between two looks at how far a run is."""


def write_data(file: Path, rows: int = 240) -> None:
    source = random.Random(0)
    lines = ["text,label"]
    for row in range(rows):
        words = source.choices(WORDS, k=6)
        words.insert(source.randrange(7), ("bad", "good")[row % 2])
        lines.append(f"{' '.join(words)},{('negative', 'positive')[row % 2]}")
    file.write_text("\n".join(lines) + "\n")


def job_document(output: Path) -> dict[str, Any]:
    return {
        "apiVersion": "lmj.dev/v1alpha1",
        "kind": "LiveMigrationJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "pipeline": {"stages": 2, "microBatches": 2},
            "model": {
                "scratch": {
                    "layers": 2,
                    "hiddenSize": 32,
                    "heads": 2,
                    "intermediateSize": 64,
                    "vocabulary": 100,
                    "maxPositions": 32,
                },
                "labels": ["negative", "positive"],
            },
            "dataset": {
                "source": "data.csv",
                "text": ["text"],
                "label": "label",
                "splits": {"validationFraction": 0.1, "testFraction": 0.1},
                "maxLength": 16,
            },
            "training": {"epochs": 100, "maxSteps": 400, "batchSize": 8, "learningRate": 0.001, "threads": 1},
            "checkpoint": {"everySteps": 20},
            "output": {"path": str(output)},
        },
    }


class Job:
    """A job's file in ``folder``, with everything that it needs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "job.yaml"
        self.output = folder / "out"
        self.metrics = self.output / "metrics.jsonl"
        write_data(folder / "data.csv")
        self.file.write_text(yaml.safe_dump(job_document(self.output)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lmj_operator.cli.main", "run", str(self.file), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = self.end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """What the run said, when it has ended. The deadline is for each ``MANY`` steps: how many there are is the test's to say."""
        due, deadline = 0, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=LOOK_SECONDS)
            if (step := max(self.losses(), default=0)) >= due:
                due, deadline = step + MANY, time.monotonic() + DEADLINE
            if time.monotonic() > deadline:
                process.terminate()
                out, err = process.communicate(timeout=60)
                raise AssertionError(f"the run is at step {step}, not at {due} or over, after {DEADLINE:g} s:\n{out}\n{err}")

    def losses(self) -> dict[int, float]:
        """Loss of every step."""
        file = self.output / "metrics.jsonl"
        if not file.exists():
            return {}
        whole = file.read_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return {line["step"]: line["loss"] for line in lines if line.get("loss") is not None}

    def wait_for_step(self, step: int, process: subprocess.Popen[str]) -> None:
        wait_until(lambda: max(self.losses(), default=0) >= step, process)

    def identity(self) -> Run:
        """Which run it is, as its pods read it."""
        return LiveMigrationJob.model_validate_json((self.output / ".lmj" / "job.json").read_bytes()).metadata.run

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.output / ".lmj" / "status.json").read_text())
        return value

    def processes(self) -> list[int]:
        """Processes whose command line names the output folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.output).encode() in line:
                    found.append(int(entry.name))
        return found

    def worker(self, rank: int) -> int:
        """Process id of the worker of ``rank``."""
        return self._found("worker", rank)

    def agent(self, rank: int) -> int:
        """Process id, and process group, of the agent of ``rank``, whatever it began as."""
        return self.pod(self.status()["ranks"][rank]["pod"])

    def fork_server(self, rank: int) -> int:
        """Process id of the process that workers of ``rank`` are forked from."""
        return self._found("fork-server", rank)

    def pod(self, name: str) -> int:
        """Process id, and process group, of the agent of the pod ``name``."""
        found = [pid for pid, words in self._trainers("agent") if words[words.index("--pod") + 1] == name]
        assert found, f"pod {name} has no agent"
        return found[0]

    def _found(self, what: str, rank: int) -> int:
        for pid, words in self._trainers(what):
            if "--rank" in words and words[words.index("--rank") + 1] == str(rank):
                return pid
        raise AssertionError(f"rank {rank} has no {what}")

    def _trainers(self, what: str) -> Iterator[tuple[int, list[str]]]:
        """Process ids and arguments of the job's ``lmj_trainer what``."""
        for pid in self.processes():
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
            except OSError:
                continue  # it ended meanwhile
            if arguments[1:4] == ["-m", "lmj_trainer", what]:
                # A fork server has the arguments of a worker as one, to make room for them.
                yield pid, arguments[-1].split() if what == "fork-server" else arguments


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"the run ended with {process.returncode}:\n{out}\n{err}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s")
        time.sleep(0.02)


def last_json(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text.splitlines()[-1])
    return value
