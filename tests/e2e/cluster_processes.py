"""Processes of a job's pods: those of this machine's nodes are seen from here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def send(pid: int | None, number: signal.Signals) -> None:
    """None, or one that is gone: the other of two at once took it."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def fill(file: Path) -> None:
    """Write ``file`` until there is no room on its disk."""
    with suppress(OSError), file.open("ab", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))


def agents(job: str) -> dict[str, int]:
    """Process id of the agent of each pod of ``job`` on this machine's nodes: their processes are seen from here."""
    found = {}
    for folder in Path("/proc").iterdir():
        words = words_of(int(folder.name)) if folder.name.isdigit() else []
        if words[1:4] == ["-m", "lmj_trainer", "agent"] and "--pod" in words and words[words.index("--pod") + 1].startswith(job):
            found[words[words.index("--pod") + 1]] = int(folder.name)
    return found


def worker_of(agent: int) -> int | None:
    """Process id of the worker of an agent; None: it has none now."""
    return next((pid for pid in children_of(agent) if words_of(pid)[3:4] == ["worker"]), None)


def children_of(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
