"""What members of a view that is over have saved since is not gone back to."""

from __future__ import annotations

import pytest
from planned import view_of_one

from lmj_api.names import checkpoint_name
from lmj_api.protocol import AgentState, CheckpointInfo
from lmj_api.run import Run
from lmj_api.spec import JobSpec
from lmj_api.status import JobStatus
from lmj_api.view import View
from lmj_operator.plan.membership.strays import is_stray, without_strays
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase

SPEC = {
    "model": {"scratch": {"layers": 4}},
    "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
    "output": {"path": "out"},
}


OURS, OTHER = (Run(id=f"{digit * 8}-0000-4000-8000-000000000000") for digit in "ab")


def info(step: int, view: int | None, run: Run = OURS) -> CheckpointInfo:
    return CheckpointInfo(name=checkpoint_name(step, view, run), step=step)


def view(number: int, step: int) -> View:
    return view_of_one(number, step, reason="test")


@pytest.mark.parametrize(
    ("step", "written", "stray"),
    [
        pytest.param(440, 7, True, id="of an older view, after the newest began"),
        pytest.param(380, 7, False, id="what the newest began with"),
        pytest.param(440, 8, False, id="its own"),
        pytest.param(440, None, False, id="of no view that is known"),
    ],
)
def test_which(step: int, written: int | None, stray: bool) -> None:
    assert is_stray(info(step, written), view(8, 380), OURS) is stray
    # Of before runs had an identity.
    assert is_stray(info(step, written, Run()), view(8, 380), OURS) is stray


@pytest.mark.parametrize("number", [1, 8, 99])
def test_what_another_run_saves_is_older_than_every_view_of_this_one(number: int) -> None:
    """Its pods may be there yet when the job is made again, and its views were counted for themselves."""
    assert is_stray(info(440, number, OTHER), view(8, 380), OURS)
    assert not is_stray(info(380, number, OTHER), view(8, 380), OURS)


def test_no_agent_tells_of_them() -> None:
    spec = JobSpec.model_validate(SPEC)
    told = [info(440, 7), info(400, 8), info(380, 7)]
    pods = tuple(
        PodObserved(
            f"pod-{rank}",
            rank,
            1,
            PodPhase.RUNNING,
            0.0,
            agent=AgentState(pod=f"pod-{rank}", rank=rank, started=0.0, checkpoints=told),
        )
        for rank in range(2)
    )
    seen = Observed("job", spec, JobStatus(view=view(8, 380)), (*pods, PodObserved("new", 1, 2, PodPhase.PENDING, 0.0)), OURS)
    for pod in without_strays(seen).pods[:2]:
        assert pod.agent is not None
        assert [c.name for c in pod.agent.checkpoints] == ["step-000000400-v8-aaaaaaaa", "step-000000380-v7-aaaaaaaa"]
    early = Observed("job", spec, JobStatus(), pods)
    assert without_strays(early) is early
