"""Which test goes through which line: recorded while the tests of one file run, unbroken."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from mutants.mutant import ROOT


class Recorder:
    """A plugin of pytest's. Lines of a fixture that several tests share are those of each test of the file."""

    def __init__(self, files: set[str]) -> None:
        """``files``: from the project's root."""
        self._files = {str(ROOT / file): file for file in files}
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        """By test; "": of all."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.shared = 0.0
        """Seconds of the slowest set-up: of what tests share."""
        self.failed: list[str] = []
        self._now: set[tuple[str, int]] = self.lines[""]
        self._left: dict[CodeType, set[int]] = {}

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        left = self._left.get(frame.f_code)
        if left is None:
            left = self._left[frame.f_code] = {line for _, _, line in frame.f_code.co_lines() if line is not None}
        if not left:
            return None
        now = self._now

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                now.add((file, frame.f_lineno))
                left.discard(frame.f_lineno)
            return line

        now.add((file, frame.f_lineno))
        return line

    def _context(self, test: str) -> None:
        self._now = self.lines[test]
        self._left = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """From its set-up to its end."""
        self._context(item.nodeid)
        sys.settrace(self._call)
        threading.settrace(self._call)
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = time.monotonic() - begun
            self._context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        """What is made once for several tests."""
        if fixturedef.scope == "function":
            return (yield)
        before, begun = self._now, time.monotonic()
        self._now, self._left = self.lines[""], {}
        try:
            return (yield)
        finally:
            self._now, self._left = before, {}
            self.shared = max(self.shared, time.monotonic() - begun)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Unbroken code must pass."""
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")


class Chosen:
    """A plugin of pytest's that runs certain tests, the fastest first."""

    def __init__(self, costs: dict[str, float]) -> None:
        self._costs = costs

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out all others."""
        items[:] = sorted((i for i in items if i.nodeid in self._costs), key=lambda i: self._costs[i.nodeid])


class Teller:
    """A plugin of pytest's that names each test before it begins: its deadline counts from there."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A line."""
        os.write(self._pipe, f"{nodeid}\n".encode())
