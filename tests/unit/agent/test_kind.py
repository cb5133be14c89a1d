"""The kinds of workers."""

from types import SimpleNamespace
from typing import Any, cast

from tests.planned import job_spec

from lmj_trainer.agent.kind import KINDS, WorkerKind, worker_kind
from lmj_trainer.agent.main import begin


def test_what_a_trainer_is_given_follows_from_the_job() -> None:
    assert worker_kind(job_spec()) == WorkerKind(["worker"], ["warm"], ["--memory-fd"], saves=True)
