"""A user's script in two processes on this machine, each a node of its own: as a job of ``strategy: Command``, and by two agents of torchrun."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from killable import QUIET, STOP_SECONDS, TORCHRUN
from procfs import family

SCRIPT = Path(__file__).parent / "contenders" / "script_trainer.py"
NODES = 2
FOREVER = 1_000_000
EVERY = 10
"""Steps between the script's checkpoints."""
START_SECONDS = 180.0
POLL_SECONDS = 0.02
# torchrun at its best: it notices a node that is gone in seconds, not in fifteen, and does not wait half a minute for one that may come.
RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"


@dataclass(frozen=True)
class Line:
    """A step, as the script's first process wrote it down."""

    step: int
    time: float
    pid: int
    world: int


class Scripted(ABC):
    """The script in ``folder``, with ``turns`` steps a turn; 0: it trains without end."""

    name: str

    def __init__(self, folder: Path, turns: int = 0) -> None:
        self.folder, self.output = folder, folder / "out"
        self._turns, self._log = turns, folder / "log"
        self._lines: list[Line] = []
        self._read = 0
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def start(self) -> None:
        """Start it on both nodes."""

    @abstractmethod
    def lose(self, rank: int) -> None:
        """Kill all that the node of ``rank`` runs, as if it had lost its power."""

    @abstractmethod
    def restore(self) -> None:
        """Have the lost node there again, where that does not happen by itself."""

    @abstractmethod
    def stop(self) -> None:
        """End it. Idempotent."""

    @abstractmethod
    def require_alive(self) -> None:
        """Raises RuntimeError when it ended."""

    def arguments(self) -> list[str]:
        """The script and its arguments."""
        words = [
            "--output_dir",
            str(self.output),
            "--max_steps",
            str(FOREVER),
            "--save_steps",
            str(EVERY),
            "--save_total_limit",
            "2",
        ]
        words += ["--per_device_train_batch_size", "16", "--use_cpu", "--disable_tqdm", "True", "--report_to", "none"]
        words += ["--logging_steps", str(EVERY), "--learning_rate", "1e-4", "--lr_scheduler_type", "constant"]
        if self._turns:
            words += ["--turns", str(self._turns), "--save_strategy", "no"]
        return [str(SCRIPT), *words]

    def pid(self, rank: int) -> int:
        """The process that is ``rank``."""
        return int((self.output / f"pid-{rank}").read_text())

    def lines(self) -> list[Line]:
        """All steps that were ever done, in the order of time."""
        self.require_alive()
        file = self.output / "metrics.jsonl"
        if file.exists():
            with file.open("rb") as opened:
                opened.seek(self._read)
                whole = opened.read().rpartition(b"\n")[0]
            if whole:
                self._read += len(whole) + 1
                self._lines += [Line(**json.loads(line)) for line in whole.splitlines()]
        return self._lines

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-3000:]

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Until ``holds``. Raises RuntimeError when it takes too long, or the job ended."""
        deadline = time.monotonic() + seconds
        while not holds():
            self.require_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {what}: not within {seconds:g} s\n{self.said()}")
            time.sleep(POLL_SECONDS)

    def whole(self, steps: int) -> None:
        """Wait until both processes train, and have done ``steps`` since."""

        def settled() -> bool:
            last = self.lines()[-steps:]
            return len(last) == steps and {line.world for line in last} == {NODES} and len({line.pid for line in last}) == 1

        self.wait(f"{steps} steps of both processes", settled)

    def turn(self, step: int) -> float:
        """Have it do its turn up to ``step``; seconds a step."""
        (self.output / "may").write_text(str(step))
        took = self.output / f"took-{step}"
        self.wait(f"step {step}", lambda: took.exists() and took.read_text() != "")
        return float(took.read_text())

    def waits(self, step: int) -> bool:
        """Whether both processes wait for a turn after ``step``."""
        files = [self.output / f"waits-{rank}" for rank in range(NODES)]
        return all(file.exists() and file.read_text() == str(step) for file in files)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | QUIET | TORCHRUN | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                cwd=self.folder,
            )


class Ours(Scripted):
    """``lmj run`` of it."""

    name = "this project, strategy: Command"

    def __init__(self, folder: Path, turns: int = 0, least: int = NODES, *, memory: bool = False) -> None:
        """``least``: nodes that it goes on with. ``memory``: it keeps its state after each step."""
        super().__init__(folder, turns)
        self._least = least
        self._command = {"args": self.arguments(), "threads": 1} | ({"memory": {"every": 1}} if memory else {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        document = {
            "apiVersion": "lmj.dev/v1alpha1",
            "kind": "LiveMigrationJob",
            "metadata": {"name": "script"},
            "spec": {
                "strategy": "Command",
                "command": self._command,
                "dataParallel": {"replicas": NODES, "minReplicas": self._least},
                "recovery": {"maxRestarts": FOREVER},
                "output": {"path": str(self.output)},
            },
        }
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump(document))
        self._process = self._spawn([sys.executable, "-m", "lmj_operator.cli.main", "run", str(file), "--plain"])

    def lose(self, rank: int) -> None:
        status = json.loads((self.output / ".lmj" / "status.json").read_text())
        agent = self.output / ".lmj" / "pods" / status["ranks"][rank]["pod"] / "agent.json"
        _kill(int(json.loads(agent.read_text())["pid"]))

    def restore(self) -> None:
        """The operator makes another pod."""

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None

    def require_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended by itself:\n{self.said()}")


class Torchrun(Scripted):
    """An elastic agent for each node, and a rendezvous that the first one has."""

    name = "torchrun --nnodes 1:2"

    def __init__(self, folder: Path, turns: int = 0) -> None:
        super().__init__(folder, turns)
        self._agents: list[subprocess.Popen[bytes] | None] = [None] * NODES
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])

    def start(self) -> None:
        for node in range(NODES):
            self._agents[node] = self._spawn(self._command(node))

    def _command(self, node: int) -> list[str]:
        words = ["--nnodes", f"1:{NODES}", "--nproc-per-node", "1", "--max-restarts", str(FOREVER), "--local-addr", "127.0.0.1"]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "script"]
        words += ["--rdzv-conf", f"is_host={int(node == 0)},{RENDEZVOUS}"]
        return [sys.executable, "-m", "torch.distributed.run", *words, *self.arguments()]

    def lose(self, rank: int) -> None:
        """The node that does not have the rendezvous: with the other one the whole job would end. Whatever rank it has."""
        lost = self._agents[1]
        assert lost is not None
        _kill(lost.pid)
        lost.wait()
        self._agents[1] = None

    def restore(self) -> None:
        self._agents[1] = self._spawn(self._command(1))

    def stop(self) -> None:
        for node, agent in enumerate(self._agents):
            if agent is not None:
                _end(agent)
                self._agents[node] = None

    def require_alive(self) -> None:
        for agent in self._agents:
            if agent is not None and agent.poll() is not None:
                raise RuntimeError(f"{self.name} ended by itself:\n{self.said()}")


def _kill(pid: int) -> None:
    """A process and all that descends from it, at once."""
    pids = family(pid)
    for each in pids:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process, in order; whatever is left of its descendants is killed."""
    pids = family(process.pid)
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
