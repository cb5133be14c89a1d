"""Jobs of two processes that train until they are stopped, and whose workers can be killed: this project's and torchrun's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import yaml
from steps import Steps

CONTENDERS = Path(__file__).parent / "contenders"
EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
# By default the store of torchrun's own rendezvous serves the workers too, with the addresses of dead ones still in it: a worker that reads
# one waits for a port that is closed for good (pytorch 135712), and most restarts hang. So torchrun is measured at its best.
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STOP_SECONDS = 60.0
FOREVER = 1_000_000


class Killable(ABC):
    """A job with its files in ``folder``. A new start goes on where the one before was."""

    name: str
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path, sets: Mapping[str, object] | None = None) -> None:
        """``sets``: fields of the quickstart's spec that are other than there, by their path."""
        self.folder = folder
        self.sets = sets or {}
        self.process: subprocess.Popen[bytes] | None = None
        self._steps = Steps(folder / "metrics.jsonl")
        self._log = folder.parent / f"{folder.name}.log"

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    @abstractmethod
    def workers(self) -> dict[int, int]:
        """Process ids of the living workers, by rank."""

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | QUIET | TORCHRUN | dict(self.environment),
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it, with its workers. Idempotent."""
        if self.process is None:
            return
        workers, process, self.process = self.workers(), self.process, None
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in workers.values():
            _wait_for_end(pid)

    def look(self) -> int:
        """Take note of the steps that were done meanwhile; the highest that ever was. Raises RuntimeError when the job ended."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended by itself:\n{self._log.read_text()[-3000:]}")
        return self._steps.look()

    @property
    def seen(self) -> set[tuple[int, float]]:
        """Each step that was done, and when: a step that was done again is there twice."""
        return self._steps.seen


class Ours(Killable):
    """``lmj run`` of the quickstart, without its evaluations, which torchrun's script does not have."""

    name = "this project, lmj run"

    def command(self) -> list[str]:
        sets = {
            "output.path": self.folder,
            "training.epochs": FOREVER,
            "dataset.splits.validationFraction": 0,
            "output.weights": "Last",
            "recovery.maxRestarts": FOREVER,
            **self.sets,
        }
        words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "lmj_operator.cli.main", "run", str(EXAMPLE), "--plain", *words]

    @property
    def agents(self) -> list[int]:
        return [json.loads(file.read_text())["pid"] for file in (self.folder / ".lmj" / "pods").glob("*/agent.json")]

    def agent(self, pod: str) -> int:
        """Process id of the agent of ``pod``, and of its process group."""
        return int(json.loads((self.folder / ".lmj" / "pods" / pod / "agent.json").read_text())["pid"])

    def workers(self) -> dict[int, int]:
        return {
            int(words[words.index("--rank") + 1]): pid
            for agent in self.agents
            for pid, words in _children(agent)
            if words[3:4] == ["worker"]
        }

    def fork_servers(self) -> list[int]:
        """Process ids of what workers are forked from."""
        return [pid for agent in self.agents for pid, words in _children(agent) if words[3:4] == ["fork-server"]]

    def data(self) -> Path:
        """The tokenized rows, once it has started."""
        return next((self.folder / "cache").glob("*/train.labels.npy")).parent


class StopAndCopy(Ours):
    """The same, but training stops while a rank that moves is copied."""

    name = "this project, training stopped for the copy"
    environment: ClassVar = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CONTENDERS / "stop_and_copy"), os.environ.get("PYTHONPATH")])),
    }


class Torchrun(Killable):
    """``torchrun --max-restarts`` of the same model on the same rows."""

    name = "torchrun, DDP over Gloo"

    def __init__(self, folder: Path, data: Path, sets: Mapping[str, object] | None = None, processes: int = 2) -> None:
        super().__init__(folder, sets)
        self._data, self._processes = data, processes

    def command(self) -> list[str]:
        spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
        for path, value in self.sets.items():
            *parts, field = path.split(".")
            reduce(lambda part, name: part.setdefault(name, {}), parts, spec)[field] = value
        model, training = spec["model"]["scratch"], spec["training"]
        config = {
            "num_hidden_layers": model["layers"],
            "hidden_size": model["hiddenSize"],
            "num_attention_heads": model["heads"],
            "intermediate_size": model["intermediateSize"],
            "vocab_size": model["vocabulary"],
            "max_position_embeddings": model["maxPositions"],
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self._processes}"]
        options = ["--config", json.dumps(config), "--data", str(self._data), "--output", str(self.folder)]
        options += ["--batch", str(training["batchSize"]), "--every", str(spec["checkpoint"]["everySteps"])]
        options += ["--learning-rate", str(training["learningRate"])]
        return [*torchrun, f"--max-restarts={FOREVER}", str(CONTENDERS / "elastic.py"), *options]

    def workers(self) -> dict[int, int]:
        assert self.process is not None
        found = {}
        for pid, words in _children(self.process.pid):
            if any(word.endswith("elastic.py") for word in words):
                found[_rank(pid)] = pid
        return {rank: pid for rank, pid in found.items() if rank is not None}


def born(pid: int) -> float | None:
    """When a process was started, seconds since the epoch, to a hundredth; None: it is gone."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def proportional_mb(pid: int) -> float:
    """Memory of a process in MB, where a page that n processes share counts as 1/n."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024 / 1e6


def _children(pid: int) -> list[tuple[int, list[str]]]:
    """Children of ``pid`` that have begun, each with its command line."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            try:
                words = Path(f"/proc/{child}/cmdline").read_text().rstrip("\0").split("\0")
            except OSError:
                continue
            if words != [""]:
                found.append((child, words))
    return found


def _rank(pid: int) -> int | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(variable[5:]) for variable in variables if variable.startswith(b"RANK=")), None)


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} of a job that was stopped does not end")
        time.sleep(0.05)
