"""The end of a run on this machine: what it came to, its exit code, and how it is told."""

from dataclasses import dataclass
from typing import Any

from lmj_api.layout import Layout
from lmj_api.protocol import USER_ERROR, Evaluation
from lmj_api.status import JobStatus, Phase
from lmj_operator.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, SUCCEEDED
from lmj_operator.plan.observe.units import duration


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    status: JobStatus
    """The newest that was stored."""
    layout: Layout
    """Where its results are."""
    seconds: float | None
    """How long it took; None: it had ended before, and nothing was done."""
    at_once: bool = False
    """It was told to leave at once, without a checkpoint."""
    stateless: bool = False
    """It was of a script."""

    @property
    def code(self) -> int:
        """The exit code."""
        return INTERRUPTED if self.at_once else exit_code(self.status, stateless=self.stateless)


def exit_code(status: JobStatus, *, stateless: bool = False) -> int:
    """The command's exit code for a job that came to rest with ``status``. ``stateless``: what a script ends with is no word of ours."""
    if status.phase is Phase.SUCCEEDED:
        return SUCCEEDED
    if status.phase is Phase.SUSPENDED:
        return INTERRUPTED
    return (
        BAD_INPUT
        if not stateless and any(r.exit_code == USER_ERROR and r.exit_message == status.message for r in status.ranks)
        else FAILED
    )


def summary(
    status: JobStatus, layout: Layout, seconds: float | None, *, stateless: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The end of a run that took ``seconds``, as data and as lines for people. ``stateless``: of a script."""
    test = next((e for e in reversed(status.evaluations) if e.split == "test"), None)
    result: dict[str, Any] = {
        "phase": status.phase.value,
        "message": status.message,
        "steps": status.progress.step if status.progress is not None else 0,
        "testAccuracy": test.accuracy if test is not None else None,
        "evaluations": [e.model_dump(mode="json", by_alias=True) for e in status.evaluations],
        "model": str(layout.model) if status.phase is Phase.SUCCEEDED and not stateless else None,
        "output": layout.results or str(layout.output),
        "seconds": round(seconds, 3) if seconds is not None else None,
        "restarts": status.restarts,
        "stepsLost": status.steps_lost,
    }
    took = f" after {duration(seconds)}" if seconds is not None else ""
    if status.phase is Phase.SUCCEEDED:
        whole = " of this start; over all starts" if took and status.restarts_before else ""
        lines = [
            f"succeeded{took}{whole}: {result['steps']} steps, {status.restarts} restarts, {status.steps_lost} steps done again"
        ]
        lines += [f"test {_scores(test)} ({test.samples} samples)"] if test is not None else []
        lines += [f"output: {layout.output}"] if stateless else _of_model(layout)
    elif status.phase is Phase.SUSPENDED:
        lines = [f"{status.message}{took}; the same command resumes"]
    else:
        lines = [f"failed{took}; the ranks' logs are in {layout.logs}"]
    return result, lines


def _of_model(layout: Layout) -> list[str]:
    lines = [f"model: {layout.model}"] if layout.results is None else [f"model: {layout.results}/model, and {layout.model} here"]
    # A model of a class of the user's own has its file beside it, and is used by programs.
    return lines + ([f'try: lmj predict {layout.model} "a text of yours"'] if not any(layout.model.glob("*.py")) else [])


def _scores(test: Evaluation) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in test.scores.items()) or f"loss {test.loss_text}"
