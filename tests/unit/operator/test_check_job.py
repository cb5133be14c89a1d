"""The check of a job, in a process of its own: what it says comes at once, what it complains of is an error, and its end is always told."""

import asyncio
import sys
from collections.abc import Sequence

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_operator.cli import trainer
from lmj_operator.cli.errors import CommandError

JOB = LiveMigrationJob.model_validate(
    {
        "metadata": {"name": "job"},
        "spec": {
            "model": {"scratch": {}},
            "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
            "output": {"path": "/o"},
        },
    }
)


def check(program: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """What the check printed and said, where the check is ``program``."""
    real = trainer._run

    async def run(command: Sequence[str], say: "trainer.Callable[[str], None]") -> tuple[int, str, list[str]]:
        assert command[1:5] == ["-P", "-m", "lmj_trainer", "check"]
        return await real([sys.executable, "-c", program], say)

    monkeypatch.setattr(trainer, "_run", run)
    said: list[str] = []
    return asyncio.run(trainer.check_job(JOB, said.append)), said


def test_a_person_hears_at_once_that_something_is_done_and_then_what(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('reading', file=sys.stderr); print('warning: odd', file=sys.stderr); print('rows: 5')"
    assert check(program, monkeypatch) == ("rows: 5", ["checking the data and the model", "reading", "warning: odd"])


def test_a_users_error_is_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('reading', file=sys.stderr); print('error: no column', file=sys.stderr); sys.exit(2)"
    with pytest.raises(CommandError) as caught:
        check(program, monkeypatch)
    assert (caught.value.lines, caught.value.code) == (("no column",), 2)


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("raise ValueError('of ours')", "exit code 1: ValueError: of ours"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9: no message"),
        ("import sys; sys.stderr.write('x' * 300000 + '\\nend'); sys.exit(7)", "exit code 7: end"),
    ],
)
def test_a_check_that_breaks_is_no_users_error(program: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match=f"ended with {last}$") as caught:
        check(program, monkeypatch)
    assert caught.value.code == 1
