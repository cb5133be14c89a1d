"""How a run is told to who waits for it: a bar in a terminal or a notebook, lines elsewhere."""

import html
import importlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from lmj.words import told
from lmj_api.status import JobStatus
from lmj_operator.backend.port import PodEvent
from lmj_operator.cli.lines import progress_line
from lmj_operator.cli.reporter import PlainReporter, Reporter
from lmj_operator.plan import Action, Plan

Display = Callable[..., Any]
"""``IPython.display.display``."""


def reporter(progress: bool) -> Reporter:
    """What suits where this process's output goes to."""
    if not progress:
        return Quiet()
    if (display := _notebook()) is not None:
        return NotebookReporter(display)
    if not sys.stdout.isatty():
        return PlainReporter()
    from lmj_operator.cli.terminal import TerminalReporter

    return TerminalReporter()


def _notebook() -> Display | None:
    """What shows something in the notebook that this runs in; None: it is none. Who is in one has imported IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    found: Display = importlib.import_module("IPython.display").display
    return found


class Quiet:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def heard(self, event: PodEvent) -> None:
        """As the protocol says."""

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""

    def trouble(self, action: Action, reason: str) -> None:
        """As the protocol says."""

    def say(self, line: str) -> None:
        """As the protocol says."""

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """As the protocol says."""


class Bar:
    """What a notebook shows where a bar is to be: a page's own, or in a notebook without pages its text."""

    def __init__(self, done: int, total: int, text: str) -> None:
        self._done, self._total, self._text = done, total, text

    def _repr_html_(self) -> str:
        return f'<progress value="{self._done}" max="{self._total}"></progress> {html.escape(self._text)}'

    def __repr__(self) -> str:
        return self._text


class NotebookReporter(PlainReporter):
    """A bar that is drawn anew in its place, and lines above and below it."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display
        self._bar: Any = None
        self._shown = ""

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""
        super().planned(before, plan)
        at = plan.status.progress
        if at is None:
            return
        text = progress_line(at, plan.status.phase)
        if text == self._shown:
            return
        self._shown, bar = text, Bar(at.step, at.steps, text)
        if self._bar is None:
            self._bar = self._display(bar, display_id=True)
        else:
            self._bar.update(bar)

    def progress(self, line: str) -> None:
        """As the base says: here the bar tells it."""


class Relay:
    """Passes all on to another reporter, in the thread that takes it from a queue, in the words of Python."""

    def __init__(self, to: Reporter, put: Callable[[Callable[[], object]], None]) -> None:
        self._to, self._put = to, put

    def __enter__(self) -> Self:
        self._put(self._to.__enter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._put(lambda: self._to.__exit__(None, None, None))

    def heard(self, event: PodEvent) -> None:
        """As the protocol says."""
        self._put(lambda: self._to.heard(event))

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""
        self._put(lambda: self._to.planned(before, plan))

    def trouble(self, action: Action, reason: str) -> None:
        """As the protocol says."""
        self._put(lambda: self._to.trouble(action, reason))

    def say(self, line: str) -> None:
        """As the protocol says."""
        self._put(lambda: self._to.say(told(line)))

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """As the protocol says."""
        self._put(lambda: self._to.result(result, [told(line) for line in lines]))
