"""Runs that are left alone, for others to be compared with: each is made once for the whole session."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from jobs import Job, last_json

STEPS = 400
"""Steps of the one that most are compared with."""


@dataclass(frozen=True)
class Undisturbed:
    """A run that is over."""

    job: Job
    result: dict[str, Any]
    """What it said at last."""


@pytest.fixture(scope="session")
def undisturbed_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Undisturbed]:
    """The run of so many steps. Not to be changed."""

    @cache
    def of(steps: int) -> Undisturbed:
        job = Job(tmp_path_factory.mktemp("undisturbed"))
        done = job.run("-o", "json", "--set", f"training.maxSteps={steps}")
        assert done.returncode == 0, done.stdout + done.stderr
        return Undisturbed(job, last_json(done.stdout))

    return of
