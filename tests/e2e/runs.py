"""Runs that are watched while they go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .jobs import DEADLINE, Job, wait_until


class Run:
    """A running job, and what it says."""

    def __init__(self, job: Job, *sets: str) -> None:
        self.job = job
        self.process = job.start("--plain", *(word for text in sets for word in ("--set", text)))
        self.lines: list[str] = []
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout or ()), daemon=True)
        self._reader.start()

    def stale(self) -> dict[str, Any] | None:
        found = [c for c in self.job.status()["conditions"] if c["type"] == "CheckpointStale"]
        return found[0] if found else None

    def wait_for_stale(self, status: str) -> dict[str, Any]:
        wait_until(lambda: (at := self.stale()) is not None and at["status"] == status, self.process)
        found = self.stale()
        assert found is not None
        return found

    def finish(self) -> str:
        code = self.process.wait(timeout=DEADLINE)
        self._reader.join(10)
        assert self.process.stderr is not None
        said = "".join(self.lines) + self.process.stderr.read()
        assert code == 0, said
        return said


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(timeout=60)
