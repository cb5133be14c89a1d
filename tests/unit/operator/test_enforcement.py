"""What the plan makes of a network that does not enforce a job's NetworkPolicy, and of one of which that is not known."""

from dataclasses import replace

import pytest
from planned import job_spec
from tests.unit.operator.seen import pod, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.spec import Encryption, Network, PolicyMode
from lmj_api.status import Condition, JobStatus, Phase
from lmj_operator.controller.notes import notes
from lmj_operator.plan import CreatePod, Observed, Plan, PodObserved, StartWorker, plan
from lmj_operator.plan.pods.held import why_held, without_held
from lmj_operator.plan.report.conditions import NOT_ENFORCED
from lmj_operator.plan.scene import scene_of
from lmj_operator.plan.status import status_of

NOW = 100.0
NEW = worker(WorkerPhase.STARTING, incarnation=0, view=0, address=None, holding=None)
"""Of a pod in which none was started."""


def there(*enforced: bool | None, canary: bool = True) -> tuple[PodObserved, ...]:
    """The first pods of the ranks, on nodes of their own, with what their canaries showed."""
    return tuple(
        pod(rank, 1, NEW, agent={"canary": canary}, enforced=known, node=f"node-{rank}") for rank, known in enumerate(enforced)
    )


def job(*pods: PodObserved, policy: PolicyMode = PolicyMode.REQUIRED, **more: object) -> Observed:
    spec = job_spec(2, network={"policy": policy})
    status = JobStatus(serials={"0": 1, "1": 1})
    return replace(Observed("j", spec, status, pods, generation=1, networked=True), **more)


def started(made: Plan) -> list[str]:
    return [action.pod for action in made.actions if isinstance(action, StartWorker)]


def told(status: JobStatus) -> Condition | None:
    return next((c for c in status.conditions if c.type == NOT_ENFORCED), None)


def after(*pods: PodObserved, old: JobStatus | None = None) -> JobStatus:
    seen = replace(job(*pods), status=old or JobStatus())
    return status_of(scene_of(seen, NOW), Phase.PENDING, "")


# With Required.


@pytest.mark.parametrize(
    ("enforced", "starts"),
    [
        ((True, True), ["j-r0-1", "j-r1-1"]),
        ((True, None), ["j-r0-1"]),
        ((False, True), ["j-r1-1"]),
        ((None, None), []),
        ((False, False), []),
    ],
)
def test_a_worker_starts_where_the_policy_is_known_to_be_enforced(enforced: tuple[bool | None, ...], starts: list[str]) -> None:
    made = plan(job(*there(*enforced)), NOW)
    assert started(made) == starts
    assert made.status.phase is Phase.PENDING


@pytest.mark.parametrize("enforced", [None, False, True])
def test_by_default_it_starts_at_once(enforced: bool | None) -> None:
    pods = there(enforced, enforced)
    assert started(plan(job(*pods, policy=PolicyMode.PREFERRED), NOW)) == ["j-r0-1", "j-r1-1"]
    assert started(plan(job(*pods, networked=False), NOW)) == ["j-r0-1", "j-r1-1"], "one machine has no network to ask of"


def test_nothing_else_waits_for_it() -> None:
    made = plan(job(status=JobStatus()), NOW)
    assert [action for action in made.actions if isinstance(action, CreatePod)] == [CreatePod(0, 1), CreatePod(1, 1)]


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        (there(None, None), ": waits until it is known whether the network keeps others from j-r0-1, j-r1-1"),
        (there(True, None), ": waits until it is known whether the network keeps others from j-r1-1"),
        (
            there(None, False),
            ", and the operator reached port 9462 of j-r1-1 on node-1, which the job's NetworkPolicy forbids: use a network that"
            " enforces policies, let no other policy allow more, or set Preferred",
        ),
        (
            there(None, None, canary=False),
            ", and j-r0-1, j-r1-1 does not listen where that shows: use a trainer image of the operator's version",
        ),
    ],
)
def test_the_job_says_why_it_waits(pods: tuple[PodObserved, ...], why: str) -> None:
    made = plan(job(*pods), NOW)
    assert made.status.message == f"network.policy is Required{why}"
    assert next(c for c in made.status.conditions if c.type == "Progressing").message == made.status.message


def test_a_job_that_waits_for_nothing_of_it_says_nothing_of_it() -> None:
    assert "network" not in plan(job(*there(True, True)), NOW).status.message
    assert "network" not in plan(job(*there(None, None), policy=PolicyMode.PREFERRED), NOW).status.message


def test_what_runs_goes_on() -> None:
    """Its worker runs by now: only another one would wait."""
    seen = job(*(pod(rank, 1, worker(), enforced=False) for rank in range(2)))
    assert without_held(seen, (CreatePod(0, 2),)) == (CreatePod(0, 2),)
    assert why_held(seen, ()) is None
    assert without_held(seen, (StartWorker("j-r0-1", 2), CreatePod(1, 2))) == (CreatePod(1, 2),)


def test_pods_of_another_cut_wait_too() -> None:
    seen = job(*there(True, True), apart=(pod(0, 2, NEW, enforced=None), pod(1, 2, NEW, enforced=True)))
    starts = tuple(StartWorker(f"j-r{rank}-2", 1) for rank in range(2))
    assert without_held(seen, starts) == starts[1:]


# The condition.


def test_a_network_that_enforces_it_is_not_spoken_of() -> None:
    assert told(after(*there(True, None))) is None
    assert told(after(*there(None, None))) is None


def test_who_is_reached_is_told_with_what_to_do() -> None:
    status = after(*there(False, True))
    found = told(status)
    assert found is not None
    assert (found.status, found.reason) == ("True", "PortReached")
    assert found.message == (
        "the operator reached port 9462 of j-r0-1 on node-0, which the job's NetworkPolicy forbids: others may reach the ports of its"
        " ranks, which run what they are sent; use a network that enforces policies, and let no other policy allow more"
    )
    (note,) = [note for note in notes(JobStatus(), status) if note.reason == NOT_ENFORCED]
    assert (note.message, note.warning) == (found.message, True)
    assert [note for note in notes(status, after(*there(False, False), old=status)) if note.reason == NOT_ENFORCED] == []


def test_where_ranks_are_behind_relays_no_more_is_said_than_is_so() -> None:
    seen = job(*there(False, True))
    spec = seen.spec.model_copy(update={"network": Network(policy=PolicyMode.REQUIRED, encryption=Encryption.REQUIRED)})
    found = told(status_of(scene_of(replace(seen, spec=spec), NOW), Phase.PENDING, ""))
    assert found is not None
    assert "forbids: others may reach its relays, which let in nobody but its ranks; use a network that enforces" in found.message


def test_many_are_told_in_short() -> None:
    found = told(after(*there(*[False] * 2), *(pod(rank, 1, NEW, enforced=False) for rank in range(2, 100))))
    assert found is not None
    assert "j-r7-1 and 92 more, which" in found.message


def test_it_is_over_when_a_pod_shows_it_and_none_shows_otherwise() -> None:
    before = after(*there(False, False))
    for pods in (there(None, None), ()):
        found = told(after(*pods, old=before))
        assert found is not None
        assert (found.status, found.message) == ("True", told(before).message), "nobody says anything of it"  # type: ignore[union-attr]
    found = told(after(*there(True, False), old=before))
    assert found is not None
    assert found.status == "True"
    over = after(*there(True, None), old=before)
    found = told(over)
    assert found is not None
    assert (found.status, found.reason, found.message) == ("False", "PortClosed", "the network enforces the job's NetworkPolicy")
    assert told(after(*there(None, None), old=over)) == found


def test_it_speaks_of_the_newest_spec() -> None:
    before = after(*there(False, False))
    seen = replace(job(*there(None, None)), status=before, generation=7)
    found = told(status_of(scene_of(seen, NOW + 1), Phase.PENDING, ""))
    assert found is not None
    assert found.observed_generation == 7


def test_pods_of_every_cut_count() -> None:
    seen = job(*there(True, True), apart=(pod(0, 2, NEW, enforced=False),))
    found = told(status_of(scene_of(seen, NOW), Phase.PENDING, ""))
    assert found is not None
    assert found.status == "True"
