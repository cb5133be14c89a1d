"""Runs the same jobs with the code of two commits, and says whether all losses and all weights have the same bits.

python tools/same_bits.py BASE [OTHER] compares OTHER (default: the working tree) with BASE. Bits differ between types of processors and builds
of libraries, so nothing is compared with a file. Both use this environment's libraries. Exit code 1: something differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import yaml
from checkout import checkout

PACKAGES = ("crds", "operator", "trainer")
SECONDS = 300.0
"""Longest that one run may take."""
STEPS = 120
MOVED = {"training.maxSteps": 1500}
"""Another pod takes seconds to come, a step some milliseconds: training must not be over by then."""
TINY = {"layers": 3, "hiddenSize": 32, "heads": 2, "intermediateSize": 64, "vocabulary": 100, "maxPositions": 32}
ADAPTERS = {"model.lora": {"r": 4, "alpha": 8, "dropout": 0.05, "targetModules": ["query", "value"]}}


@dataclass(frozen=True)
class Case:
    """One job: its settings, and what is done to it."""

    name: str
    settings: dict[str, object]
    kills: tuple[tuple[int, int], ...] = ()
    """(step, rank): the rank's worker is killed when this step was recorded."""
    moves: tuple[tuple[int, int], ...] = ()
    """(step, rank): the rank is moved."""
    resume: tuple[int, int] | None = None
    """(step, stages): the run is stopped after this step and goes on in so many stages."""


CASES = (
    Case("one stage", {"pipeline.stages": 1}),
    Case("two stages", {"pipeline.stages": 2}),
    Case("three stages", {"pipeline.stages": 3}),
    Case("accumulation", {"pipeline.stages": 2, "training.gradientAccumulationSteps": 3, "training.maxSteps": 40}),
    Case("bfloat16", {"pipeline.stages": 2, "training.precision": "BFloat16"}),
    Case("adapters", {"pipeline.stages": 2, **ADAPTERS}),
    Case("gradient checkpointing", {"pipeline.stages": 2, "training.gradientCheckpointing": True}),
    Case(
        "DistilBERT, linear schedule",
        {"pipeline.stages": 2, "model.scratch.architecture": "distilbert", "training.schedule": "Linear"},
    ),
    Case("workers killed", {"pipeline.stages": 2}, kills=((20, 0), (50, 1), (80, 0))),
    Case("ranks moved", {"pipeline.stages": 2, **MOVED}, moves=((20, 0), (60, 1))),
    Case("adapters, killed and moved", {"pipeline.stages": 2, **ADAPTERS, **MOVED}, kills=((30, 1),), moves=((60, 0),)),
    Case("two stages, then three", {"pipeline.stages": 2}, resume=(50, 3)),
    Case("three stages, then one", {"pipeline.stages": 3}, resume=(50, 1)),
)


def main() -> int:
    """Compare, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]))
    parser.add_argument("base", help="a commit")
    parser.add_argument("other", nargs="?", help="another (default: the working tree)")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    different = 0
    with checkout(arguments.base) as base, checkout(arguments.other) as other, tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(case for case in CASES if arguments.only in case.name):
            runs = [Run(code, Path(folder, side, str(number)), case) for side, code in (("base", base), ("other", other))]
            results = [run.result() for run in runs]
            verdict = difference(*results)
            different += verdict is not None
            print(f"{case.name:32} {len(results[0].steps):4d} steps  {verdict or 'equal'}", flush=True)
    print("equal" if not different else f"{different} differ")
    return 1 if different else 0


@dataclass(frozen=True)
class Result:
    """What a run left."""

    steps: list[tuple[int, float, float, float]]
    """Step, loss, norm of the gradient and learning rate."""
    weights: dict[str, str]
    """SHA-256 of each file with tensors."""


def difference(base: Result, other: Result) -> str | None:
    """Where they differ first; None: nowhere."""
    for old, new in zip(base.steps, other.steps, strict=False):
        if old != new:
            return f"DIFFERS at step {old[0]}: {old[1:]} and {new[1:]}"
    if len(base.steps) != len(other.steps):
        return f"DIFFERS: {len(base.steps)} and {len(other.steps)} steps"
    names = sorted(
        {name for name in base.weights.keys() | other.weights.keys() if base.weights.get(name) != other.weights.get(name)}
    )
    return f"DIFFERS in {', '.join(names)}" if names else None


class Run:
    """One case with the code in ``code``; its files are in ``folder``."""

    def __init__(self, code: Path, folder: Path, case: Case) -> None:
        folder.mkdir(parents=True)
        self._folder, self._case = folder, case
        self._output = folder / "out"
        self._file = folder / "job.yaml"
        path = ":".join(str(code / package) for package in PACKAGES)
        self._environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        (folder / "data.csv").write_text(data())
        self._file.write_text(yaml.safe_dump(document(case.settings, self._output)))

    def result(self) -> Result:
        """Have it run to its end, with all that is done to it. Raises RuntimeError when it fails."""
        if self._case.resume is not None:
            step, stages = self._case.resume
            first = self._start()
            self._wait(first, step)
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=SECONDS)
            text = yaml.safe_load(self._file.read_text())
            text["spec"]["pipeline"]["stages"] = stages
            self._file.write_text(yaml.safe_dump(text))
        process = self._start()
        todo = sorted(
            [(step, rank, "kill") for step, rank in self._case.kills] + [(step, rank, "move") for step, rank in self._case.moves]
        )
        for step, rank, what in todo:
            self._wait(process, step)
            if what == "kill":
                os.kill(self._worker(rank), signal.SIGKILL)
            else:
                self._lmj("migrate", str(self._output), "--rank", str(rank))
        _, errors = process.communicate(timeout=SECONDS)
        if process.returncode != 0:
            raise RuntimeError(f"{self._case.name}: exit code {process.returncode}\n{errors}")
        steps = [(line["step"], line["loss"], line["gradNorm"], line["learningRate"]) for line in self._lines()]
        tensors = sorted(self._output.glob("model/*.safetensors")) + sorted(self._output.glob("adapter/*.safetensors"))
        return Result(steps, {str(file.relative_to(self._output)): sha256(file.read_bytes()).hexdigest() for file in tensors})

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command("run", str(self._file)), env=self._environment, cwd=self._folder, **PIPES)

    def _lmj(self, *arguments: str) -> None:
        done = subprocess.run(
            self._command(*arguments), env=self._environment, cwd=self._folder, timeout=SECONDS, check=False, **PIPES
        )
        if done.returncode != 0:
            raise RuntimeError(f"lmj {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")

    @staticmethod
    def _command(*arguments: str) -> Sequence[str]:
        return [sys.executable, "-m", "lmj_operator.cli.main", *arguments]

    def _lines(self) -> list[dict[str, float]]:
        try:
            content = (self._output / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in content.rpartition("\n")[0].splitlines()]

    def _wait(self, process: subprocess.Popen[str], step: int) -> None:
        deadline = time.monotonic() + SECONDS
        while not (lines := self._lines()) or lines[-1]["step"] < step:
            if process.poll() is not None:
                raise RuntimeError(f"{self._case.name}: it ended before step {step}\n{process.communicate()[1]}")
            if time.monotonic() > deadline:
                process.terminate()
                raise RuntimeError(f"{self._case.name}: step {step} was not there within {SECONDS:g} s")
            time.sleep(0.02)

    def _worker(self, rank: int) -> int:
        """Process id of the rank's newest worker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if (
                    words[1:4] == ["-m", "lmj_trainer", "worker"]
                    and str(self._output) in " ".join(words)
                    and f"--rank {rank}" in " ".join(words)
                ):
                    found.append(int(entry.name))
        if not found:
            raise RuntimeError(f"{self._case.name}: rank {rank} has no worker")
        return max(found)


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def data() -> str:
    """240 rows of two classes."""
    source = random.Random(0)
    rows = ["text,label"]
    for row in range(240):
        words = source.choices(("film", "plot", "very", "actor", "fine", "dull", "long", "short", "scene", "story"), k=6)
        words.insert(source.randrange(7), ("bad", "good")[row % 2])
        rows.append(f"{' '.join(words)},{('negative', 'positive')[row % 2]}")
    return "\n".join(rows) + "\n"


def document(settings: dict[str, object], output: Path) -> dict[str, object]:
    """The job, with ``settings`` by their dotted names."""
    spec: dict[str, object] = {
        "pipeline": {"stages": 2, "microBatches": 2},
        "model": {"scratch": dict(TINY), "labels": ["negative", "positive"]},
        "dataset": {
            "source": "data.csv",
            "text": ["text"],
            "label": "label",
            "splits": {"validationFraction": 0.1, "testFraction": 0.1},
            "maxLength": 16,
        },
        "training": {"epochs": 100, "maxSteps": STEPS, "batchSize": 8, "learningRate": 0.001, "threads": 1},
        "checkpoint": {"everySteps": 20},
        "output": {"path": str(output)},
    }
    for name, value in settings.items():
        part = spec
        *path, last = name.split(".")
        for word in path:
            part = part[word]  # type: ignore[assignment]  # a tree of plain values
        part[last] = value
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "bits"}, "spec": spec}


if __name__ == "__main__":
    sys.exit(main())
