"""Tells what a run does: on a terminal, as plain lines, or as JSON."""

import json
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from lmj_api.status import JobStatus
from lmj_operator.backend.port import PodEvent
from lmj_operator.cli.lines import changes, event_line, progress_line
from lmj_operator.plan import Action, Plan
from lmj_operator.reconcile import Listener

PROGRESS_SECONDS = 5.0
"""Plain output has at most one progress line in so long."""


class Reporter(Listener, Protocol):
    """A listener with lines of its own; for use in ``with``."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def say(self, line: str) -> None:
        """A line for people."""
        ...

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """The end: as data, and as lines for people."""
        ...


class PlainReporter:
    """A line for each thing, for pipes and logs."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out if out is not None else sys.stdout
        self._clock = clock
        self._told = -PROGRESS_SECONDS
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._out.flush()

    def heard(self, event: PodEvent) -> None:
        """As the protocol says."""
        line = event_line(event)
        if line is not None:
            self.say(line)

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""
        for line in changes(before, plan.status):
            self.say(line)
        at = plan.status.progress
        if at is not None and at.step:
            self.progress(progress_line(at, plan.status.phase))

    def progress(self, line: str) -> None:
        """Say ``line`` when it is new and the last one is a while ago."""
        now = self._clock()
        if line != self._line and now - self._told >= PROGRESS_SECONDS:
            self._told, self._line = now, line
            self.say(line)

    def trouble(self, action: Action, reason: str) -> None:
        """As the protocol says."""
        self.say(f"{action}: {reason}; will try again")

    def say(self, line: str) -> None:
        """As the protocol says."""
        print(line, file=self._out, flush=True)

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """As the protocol says."""
        for line in lines:
            self.say(line)


class JsonReporter:
    """One JSON object a line: ``event``, ``incident``, ``view``, ``status`` (new phase or step), ``notice``, and last ``result``."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._out.flush()

    def heard(self, event: PodEvent) -> None:
        """As the protocol says."""
        if event.event is not None:
            told = event.event.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            self._write({"type": "event", "pod": event.pod, "rank": event.rank, "event": told})

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""
        after = plan.status
        known = {(i.time, i.pod, i.kind) for i in before.incidents}
        for incident in after.incidents:
            if (incident.time, incident.pod, incident.kind) not in known:
                self._write({"type": "incident", "incident": incident.model_dump(mode="json", by_alias=True)})
        if after.view is not None and after.view != before.view:
            self._write({"type": "view", "view": after.view.model_dump(mode="json", by_alias=True)})
        if (after.phase, after.progress and after.progress.step) != (before.phase, before.progress and before.progress.step):
            at = after.progress.model_dump(mode="json", by_alias=True) if after.progress else None
            self._write({"type": "status", "phase": after.phase.value, "message": after.message, "progress": at})

    def trouble(self, action: Action, reason: str) -> None:
        """As the protocol says."""
        self._write({"type": "notice", "message": f"{action}: {reason}; will try again"})

    def say(self, line: str) -> None:
        """As the protocol says."""
        self._write({"type": "notice", "message": line})

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """As the protocol says."""
        self._write({"type": "result", **result})

    def _write(self, value: dict[str, Any]) -> None:
        print(json.dumps(value, ensure_ascii=False), file=self._out, flush=True)
