"""The reporter for a terminal: a progress bar below, lines above it."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lmj_api.protocol import EventKind
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.port import PodEvent
from lmj_operator.cli.lines import changes, event_line
from lmj_operator.plan import Action, Plan
from lmj_operator.plan.observe.units import duration


class TerminalReporter:
    """As :class:`lmj_operator.cli.reporter.Reporter`."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[phase]}", style="bold"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}"),
            console=console or Console(highlight=False),
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("", total=None, phase="pending", facts="starts")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def heard(self, event: PodEvent) -> None:
        """As the protocol says."""
        if event.event is not None and event.event.kind is EventKind.PREPARING:
            # What is being prepared is news for seconds: it belongs to the bar.
            if event.rank == 0 and event.event.message:
                self._progress.update(self._task, facts=event.event.message)
            return
        line = event_line(event)
        if line is not None:
            self.say(line)

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As the protocol says."""
        for line in changes(before, plan.status):
            self.say(line)
        at, phase = plan.status.progress, plan.status.phase
        self._progress.update(self._task, phase=phase.value.lower())
        if at is None:
            return
        facts = [f"{at.step}/{at.steps}", f"epoch {at.epoch:.2f}"]
        facts += [f"loss {at.loss:.4f}"] if at.loss is not None else []
        facts += [f"{at.samples_per_second:.0f} samples/s"] if at.samples_per_second is not None else []
        facts += [f"ETA {duration(at.eta_seconds)}"] if at.eta_seconds is not None else []
        facts += [at.activity] if at.activity != "train" and phase is Phase.RUNNING else []
        self._progress.update(self._task, total=at.steps, completed=at.step, facts="  ".join(facts))

    def trouble(self, action: Action, reason: str) -> None:
        """As the protocol says."""
        self.say(f"{action}: {reason}; will try again")

    def say(self, line: str) -> None:
        """As the protocol says."""
        self._progress.console.print(line, markup=False)

    def result(self, result: dict[str, Any], lines: list[str]) -> None:
        """As the protocol says."""
        for line in lines:
            self.say(line)
