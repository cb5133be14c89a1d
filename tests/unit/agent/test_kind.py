"""The kinds of workers."""

from tests.planned import job_spec

from lmj_trainer.agent.kind import WorkerKind, worker_kind


def test_what_a_trainer_is_given_follows_from_the_job() -> None:
    assert worker_kind(job_spec(2)) == WorkerKind(["worker"], ["fork-server"], ["--memory-fd"], saves=True)
