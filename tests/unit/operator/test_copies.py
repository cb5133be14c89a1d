"""Where the states are that training could go on from, as a job's status tells it."""

from __future__ import annotations

from typing import Any

import pytest
from planned import job_spec
from tests.unit.operator.seen import facts, observed, pod, view, worker

from lmj_api.protocol import CheckpointInfo, Snapshots, WorkerPhase
from lmj_api.status import JobStatus, Phase, StateCopy
from lmj_api.topology import Topology
from lmj_operator.plan import Observed
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.report.copies import IN_MEMORY, MOST, copies
from lmj_operator.plan.scene import scene_of
from lmj_operator.plan.status import status_of


def rank(number: int, own: tuple[int, ...], kept: tuple[int, ...], **more: Any) -> RankFacts:
    return facts(number, pod(number, 1, worker(memory=Snapshots(own=own, kept=kept), **more)))


def saved(*steps: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(name=f"step-{step:09}-v3", step=step, time=float(step)) for step in steps]


def test_each_step_is_told_with_all_places_of_its_state() -> None:
    ranks = [rank(0, (480, 460), (460,)), rank(1, (480, 460), (480, 460))]
    assert copies(Topology(2), ranks, saved(440, 420), 470, ()) == [
        StateCopy(step=480, memory=2, neighbours=1),
        StateCopy(step=470, writing=True),
        StateCopy(step=460, memory=2, neighbours=2),
        StateCopy(step=440, checkpoint="step-000000440-v3"),
        StateCopy(step=420, checkpoint="step-000000420-v3"),
    ]


def test_a_step_that_is_in_memory_and_durable_is_one() -> None:
    ranks = [rank(0, (440,), (440,)), rank(1, (440,), (440,))]
    told = copies(Topology(2), ranks, saved(440), 440, ())
    assert told == [StateCopy(step=440, memory=2, neighbours=2, checkpoint="step-000000440-v3")], "it is written"


def test_one_rank_has_no_neighbour_and_one_that_does_not_answer_has_nothing() -> None:
    assert copies(Topology(1), [rank(0, (5,), (5,))], [], None, ()) == [StateCopy(step=5, memory=1)]
    ranks = [rank(0, (5,), ()), facts(1, pod(1, 1)), facts(2, None)]
    assert copies(Topology(3), ranks, [], None, ()) == [StateCopy(step=5, memory=1)]


def test_there_are_few_of_them_and_the_newest() -> None:
    ranks = [rank(number, (100 + number, number), ()) for number in range(20)]
    told = copies(Topology(20), ranks, saved(*range(30, 90)), 119, ())
    assert [copy.step for copy in told] == [119, 118, 117, 89, 88, 87, 86, 85]
    assert (len(told), sum(copy.memory > 0 for copy in told)) == (MOST, IN_MEMORY)
    assert told[0].writing


def test_of_two_checkpoints_of_a_step_the_newer_is_named() -> None:
    two = [CheckpointInfo(name=name, step=7, time=time) for name, time in (("b", 2.0), ("a", 1.0))]
    assert copies(Topology(1), [], two, None, ()) == [StateCopy(step=7, checkpoint="b")]


@pytest.mark.parametrize("looked", [True, False])
def test_what_was_durable_is_told_until_somebody_has_looked(looked: bool) -> None:
    """Without pods there is nobody to ask; who has looked knows which are gone."""
    before = JobStatus(
        copies=[
            StateCopy(step=480, memory=2, neighbours=2),
            StateCopy(step=440, checkpoint="step-000000440-v3"),
            StateCopy(step=420, checkpoint="step-000000420-v3"),
        ],
        checkpoint=saved(440)[0],
    )
    first = pod(0, 1, worker(WorkerPhase.STARTING), agent={"scanned": looked, "checkpoints": saved(440)})
    told = status_of(scene_of(observed(first, status=before), 100.0), Phase.PENDING, "").copies
    assert [copy.step for copy in told] == [440] if looked else [440, 420]
    assert not any(copy.memory for copy in told)


def test_a_job_that_runs_says_where_its_state_is_and_one_at_rest_what_stays() -> None:
    agent = {"scanned": True, "checkpoints": saved(4)}
    pods = [pod(r, 1, worker(memory=Snapshots(own=[8], kept=[8]), saving=6), agent=agent if r == 0 else {}) for r in (0, 1)]
    seen = observed(*pods, status=JobStatus(phase=Phase.RUNNING, view=view(*pods)))
    runs = status_of(scene_of(seen, 100.0), Phase.RUNNING, "")
    assert runs.copies == [
        StateCopy(step=8, memory=2, neighbours=2),
        StateCopy(step=6, writing=True),
        StateCopy(step=4, checkpoint="step-000000004-v3"),
    ]
    assert runs.checkpoint_place == f"{job_spec(2).output.path}/checkpoints"
    rests = status_of(scene_of(seen, 100.0), Phase.FAILED, "")
    assert rests.copies == [StateCopy(step=4, checkpoint="step-000000004-v3")]


def test_who_leads_knows_what_was_removed() -> None:
    """The first rank's agent looked through the folder once, and another leads since."""
    first = pod(0, 1, worker(WorkerPhase.READY), agent={"scanned": True, "checkpoints": saved(4, 2)})
    other = pod(1, 1, worker(), agent={"scanned": True, "checkpoints": saved(8, 6)})
    members = view(other).members
    led = view(other).model_copy(update={"members": [members[0].model_copy(update={"rank": 1})]})
    status = JobStatus(phase=Phase.RUNNING, view=led, copies=[StateCopy(step=4, checkpoint="step-000000004-v3")])
    spec = job_spec(1, dataParallel={"shards": 2, "replicas": 2})
    seen = Observed("j", spec, status, (first, other))
    told = status_of(scene_of(seen, 100.0), Phase.RUNNING, "").copies
    assert [copy.step for copy in told] == [8, 6]
