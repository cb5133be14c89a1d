"""Runs tests in forks of this process, which has imported everything and found all tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from mutants.hook import VARIABLE, install
from mutants.lines import Chosen, Recorder, Teller
from mutants.mutant import ROOT, Mutant
from mutants.swap import Functions

_OPTIONS = ["-q", "-s", "-p", "no:cacheprovider", "-m", "not e2e and not slow", "--tb=line", "-W", "ignore"]
_PATIENCE, _FACTOR = 15.0, 8.0
"""Seconds, and times of what it takes on unbroken code, that a test may take: more is a hang."""


@dataclass
class Child:
    """A fork, and what it said."""

    pid: int
    pipe: int
    log: Path
    begun: float = field(default_factory=time.monotonic)
    said: bytearray = field(default_factory=bytearray)
    deadline: float = 0.0
    hung: bool = False
    code: int = 0
    cpu: float = 0.0

    @property
    def lines(self) -> list[str]:
        """What it has said so far, but for a line that is not whole."""
        return self.said.decode(errors="replace").split("\n")[:-1]


def fork(work: Callable[[int], int], log: Path) -> Child:
    """A process group of its own that does ``work(pipe)`` and exits with what that returns."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return Child(pid, reads, log)
    code = 70  # whatever is raised in ``work``
    try:
        os.setpgid(0, 0)
        os.close(reads)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = work(writes)
    except BaseException:  # noqa: BLE001 - whatever it is, the fork must not go on as its parent would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(
    children: list[Callable[[], Child]], jobs: int, hears: Callable[[Child], None], ended: Callable[[Child], None]
) -> None:
    """So many at a time. ``hears``: it said something, or nothing for a second, and may be given a deadline; ``ended`` is told of each."""
    waiting, selector = list(reversed(children)), selectors.DefaultSelector()
    alive: dict[int, Child] = {}
    while waiting or alive:
        while waiting and len(alive) < jobs:
            child = waiting.pop()()
            alive[child.pipe] = child
            selector.register(child.pipe, selectors.EVENT_READ)
        for key, _ in selector.select(1.0):
            child = alive[key.fd]
            data = os.read(key.fd, 1 << 16)
            child.said += data
            if not data:
                selector.unregister(key.fd)
                _end(alive.pop(key.fd))
                ended(child)
        for child in alive.values():
            hears(child)
            if child.deadline and time.monotonic() > child.deadline and not child.hung:
                child.hung = True
                _kill(child)


def _kill(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _end(child: Child) -> None:
    os.close(child.pipe)
    # Its pipe is closed, so it is about to end; what it started and forgot goes too.
    _, status, usage = os.wait4(child.pid, 0)
    _kill(child)
    child.code, child.cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


class Loop:
    """A plugin of pytest's that does ``work`` with the tests that were found, instead of running them."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self._work = work

    def pytest_sessionstart(self) -> None:
        """A property's example that fails is enough: none that is smaller is looked for."""
        settings.register_profile("mutants", settings.default, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own."""
        if session.testsfailed:
            raise session.Failed(f"{session.testsfailed} files of tests cannot be read")
        self._work(session)
        return True


def collect(paths: list[str], work: Callable[[pytest.Session], None]) -> int:
    """Find the tests of ``paths``, and do ``work`` with them."""
    return int(pytest.main([*_OPTIONS, *paths], plugins=[Loop(work)]))


def run_items(session: pytest.Session, items: list[pytest.Item], scratch: Path, plugin: Any, *, first: bool) -> int:
    """In a fork: one after the other, ``first``: until one fails. Exit code as pytest's."""
    session.config._tmp_path_factory._basetemp = scratch  # type: ignore[attr-defined]  # each fork needs its own
    scratch.mkdir(parents=True)
    failures = Failures()
    session.config.pluginmanager.register(failures)
    session.config.pluginmanager.register(plugin)
    try:
        for item, following in itertools.zip_longest(items, items[1:]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures.seen and first:
                break
        session._setupstate.teardown_exact(None)  # what tests share ends too
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failures.seen else 0


class Failures:
    """A plugin of pytest's."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Whatever went wrong."""
        if report.failed:
            self.seen.append(f"{report.nodeid} ({report.when})")
            print(report.nodeid, report.longreprtext, sep="\n", file=sys.stderr)


def record(session: pytest.Session, items: list[pytest.Item], targets: set[str], scratch: Path) -> Callable[[], Child]:
    """A fork that runs ``items``, of one file, and says, as JSON, which goes where and how long it takes."""

    def work(pipe: int) -> int:
        recorder = Recorder(targets)
        code = run_items(session, items, scratch, recorder, first=False)
        lines = {test: sorted(places) for test, places in recorder.lines.items()}
        found = {"lines": lines, "seconds": recorder.seconds, "shared": recorder.shared, "failed": recorder.failed}
        with os.fdopen(pipe, "w") as stream:
            json.dump({**found, "code": code}, stream)
            stream.write("\n")
        return code

    return lambda: fork(work, scratch.with_suffix(".log"))


def judge(
    session: pytest.Session, functions: Functions, mutant: Mutant, costs: dict[str, float], scratch: Path
) -> Callable[[], Child]:
    """A fork that has ``mutant`` and runs the tests of ``costs``, the fastest first; its exit code is pytest's."""

    def work(pipe: int) -> int:
        os.environ[VARIABLE] = f"{mutant.file}:{mutant.number}"
        if functions.change(mutant):
            items = sorted((i for i in session.items if i.nodeid in costs), key=lambda i: costs[i.nodeid])
            return run_items(session, items, scratch, Teller(pipe), first=True)
        # It is imported again, and with it all that imported it.
        for name in [n for n in sys.modules if n.startswith(("lmj_trainer", "lmj_operator", "tests.", "conftest"))]:
            del sys.modules[name]
        install()
        plugins = [Chosen(costs), Teller(pipe)]
        paths = sorted({test.split("::")[0] for test in costs})
        return int(pytest.main([*_OPTIONS, "-x", f"--basetemp={scratch}", *paths], plugins=plugins))

    return lambda: fork(work, scratch.with_suffix(".log"))


def hears(costs: dict[str, float]) -> Callable[[Child], None]:
    """Gives each test its deadline."""
    counted = 0

    def hear(child: Child) -> None:
        nonlocal counted
        lines = child.lines
        if not child.deadline or len(lines) > counted:
            counted = len(lines)
            usual = costs.get(lines[-1], 0.0) if lines else 30.0  # importing and collecting
            child.deadline = time.monotonic() + _PATIENCE + _FACTOR * usual

    return hear


def prepare_environment() -> None:
    """As ``make test`` has it, and so that a process that a test starts finds its mutant."""
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "tools/mutants/site")])
