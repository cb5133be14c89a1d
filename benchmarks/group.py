"""A contender's processes, told in turn to run steps, so that all contenders see the same machine."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self, cast

CONTENDERS = Path(__file__).parent / "contenders"
PACKAGES = ("crds", "operator", "python", "trainer")
# What the agent sets for its workers too: memory that was freed is kept, so that no step pays for page faults.
MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
}


class Group:
    """Ranks of one contender."""

    def __init__(
        self,
        name: str,
        script: str,
        *arguments: str,
        ranks: int = 2,
        environment: dict[str, str] | None = None,
        code: Path | None = None,
    ) -> None:
        """``code``: the project's folder whose contender and packages these are; None: this one's."""
        self.name = name
        contenders = CONTENDERS if code is None else code / "benchmarks" / "contenders"
        packages = {} if code is None else {"PYTHONPATH": ":".join(str(code / package) for package in PACKAGES)}
        port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the processes live
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(contenders / script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=os.environ
                | MEMORY
                | {"RANK": str(rank), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                | {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
                | packages
                | (environment or {}),
            )
            for rank in range(ranks)
        ]
        if script == "ours.py":
            addresses = [self._read(rank)["address"] for rank in range(ranks)]
            for rank in range(ranks):
                self._write(rank, addresses[1 - rank])
        for rank in range(ranks):
            self._read(rank)

    def slowest(self, steps: int) -> float:
        """Run ``steps``; seconds a step of the rank that took longest, for a step is done when all have done it."""
        return max(self._run(steps, self._all))

    def mean(self, steps: int) -> float:
        """Run ``steps`` in ranks that do not wait for each other; seconds a step, the mean of all."""
        return statistics.mean(self._run(steps, self._all))

    def one(self, steps: int) -> float:
        """Run ``steps`` in rank 0 alone, while the others wait; seconds a step."""
        return self._run(steps, range(1))[0]

    @property
    def _all(self) -> range:
        return range(len(self._ranks))

    def _run(self, steps: int, ranks: range) -> list[float]:
        for rank in ranks:
            self._write(rank, str(steps))
        return [statistics.mean(self._read(rank)["times"]) for rank in ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for process in self._ranks:
            process.kill()
            process.wait()

    def _write(self, rank: int, line: str) -> None:
        stdin = self._ranks[rank].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def _read(self, rank: int) -> dict[str, Any]:
        stdout = self._ranks[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.name}, rank {rank} ended: {self._log.read().decode()[-2000:]}")
        return cast("dict[str, Any]", json.loads(line))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
