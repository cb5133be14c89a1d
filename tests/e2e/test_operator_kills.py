"""The operator is killed at each of its writes to a real API server, before the write is done and after: the job ends as it does without."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
from cluster.calls import Write
from cluster.proxy import Moment
from jobs import Job
from operator_fixture import Watched
from operator_jobs import DEADLINE, ClusterJob, OperatorProcess, wait_for

from lmj_operator.plan.report.conditions import NOT_ENFORCED

pytestmark = pytest.mark.e2e

STEPS = 40
LONG = 300
"""Long enough for an operator to come back while the job trains."""
Losses = Callable[[int], dict[int, float]]
"""Loss by step of a run of so many."""

BOTH = (Moment.BEFORE, Moment.AFTER)

LIFE = (
    "status Pending",
    "patch networkpolicies tiny-trainers",
    "patch poddisruptionbudgets tiny-trainers",
    "patch services tiny-trainers",
    "create persistentvolumeclaims tiny-output",
    "create pods tiny-r0-1",
    "create pods tiny-r1-1",
    "status Pending, view 1",
    "status Running",
    "status Succeeded",
    "delete pods tiny-r0-1",
    "delete pods tiny-r1-1",
    "delete services tiny-trainers",
    "delete networkpolicies tiny-trainers",
    "delete poddisruptionbudgets tiny-trainers",
    "status Succeeded, cleaned",
)
"""All that the operator writes for a job that trains to its end."""

EVENTS = ("event Started", "event Running", "event Succeeded")
"""Written behind all else: one that is lost is not written again."""


def name_of(write: Write) -> str:
    """The write in words, the same in each life of the operator."""
    target = write.target
    body = json.loads(write.body) if write.body else {}
    if target.resource == "events":
        return f"event {body['reason']}"
    if target.subresource == "status":
        status = body["status"]
        view = f", view {status['view']['number']}" if status["phase"] == "Pending" and status.get("view") else ""
        return f"status {status['phase']}{view}{', cleaned' if status.get('cleaned') else ''}"
    return f"{target.verb} {target.resource} {target.name or body['metadata']['name']}"


@dataclass
class Killer:
    """Kills the operator at the first writes of each name: one for each of ``moments``."""

    process: OperatorProcess
    namespace: str
    names: frozenset[str]
    moments: tuple[Moment, ...] = BOTH
    dead: threading.Event = field(default_factory=threading.Event)
    struck: list[tuple[str, Moment]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def __call__(self, write: Write, moment: Moment) -> bool:
        """As the proxy's hook. What a process that is dead by now had sent before still arrives, as from a network."""
        if write.target.namespace != self.namespace:
            return True
        name = name_of(write)
        if moment is Moment.BEFORE:
            self.seen.append(name)
        done = [when for what, when in self.struck if what == name]
        if self.dead.is_set() or name not in self.names or self.moments[len(done) :][:1] != (moment,):
            return True
        self.process.kill()
        self.struck.append((name, moment))
        self.dead.set()
        return moment is Moment.AFTER

    def revive(self) -> None:
        """Start the operator again if it was killed."""
        if self.dead.wait(0.1):
            # In this order: a call of the dead one that comes late must find one to kill, else two would live.
            self.process.start()
            self.dead.clear()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Losses without a cluster, and so without an operator that dies."""

    @cache
    def of(steps: int) -> dict[int, float]:
        job = Job(tmp_path_factory.mktemp("undisturbed"))
        done = job.run("--set", f"training.maxSteps={steps}", "--plain")
        assert done.returncode == 0, done.stderr
        return job.losses()

    return of


def live(operator: Watched, job: ClusterJob, killer: Killer, steps: int) -> None:
    """The job's whole life, until nothing is left but the job."""
    operator.proxy.on_write = killer
    job.spec["training"]["maxSteps"] = steps
    pods: dict[str, str] = {}
    try:
        job.apply()

        def over() -> bool:
            killer.revive()
            for name, uid in job.pods().items():
                assert pods.setdefault(name, uid) == uid, f"pod {name} was made again"
            return bool(job.status.get("cleaned"))

        wait_for("the job's end", over, lambda: f"killed at {killer.struck}\n{job.describe()}", 2 * DEADLINE)
        wait_for("the workload gone", lambda: job.left() == ["livemigrationjob.lmj.dev/tiny"], job.describe)
    finally:
        operator.proxy.on_write = None
        if killer.dead.wait(1):  # at its very last write
            killer.revive()


def assert_ends_the_same(operator: Watched, job: ClusterJob, since: int, losses: dict[int, float]) -> None:
    status = job.status
    assert (status["phase"], status["progress"]["step"], status["view"]["number"]) == ("Succeeded", len(losses), 1)
    assert (status["restarts"], status["stepsLost"], status.get("incidents", [])) == (0, 0, [])
    assert status["serials"] == {"0": 1, "1": 1}
    assert [(rank["incarnation"], rank["restarts"]) for rank in status["ranks"]] == [(1, 0), (1, 0)]
    assert job.losses() == losses
    assert job.output is not None
    assert (job.output / "out" / "model" / "model.safetensors").is_file()
    # What the server says that it made, whether the operator lived to hear it or not.
    made = Counter(call.target.resource for call in operator.writes(since, job) if call.answered == 201)
    assert {kind: number for kind, number in made.items() if kind != "events"} == {
        "networkpolicies": 1,
        "poddisruptionbudgets": 1,
        "services": 1,
        "persistentvolumeclaims": 1,
        "pods": 2,
    }


def try_it(
    operator: Watched, undisturbed: Losses, names: frozenset[str], moments: tuple[Moment, ...] = BOTH, steps: int = STEPS
) -> Killer:
    with operator.job() as job:
        since = len(operator.proxy.calls)
        killer = Killer(operator.process, job.namespace, names, moments)
        live(operator, job, killer, steps)
        assert_ends_the_same(operator, job, since, undisturbed(steps))
        return killer


@pytest.mark.slow
@pytest.mark.parametrize("name", LIFE)
def test_it_dies_at_a_write(operator: Watched, undisturbed: Losses, name: str) -> None:
    killer = try_it(operator, undisturbed, frozenset({name}), steps=LONG if name == "status Running" else STEPS)
    assert killer.struck == [(name, Moment.BEFORE), (name, Moment.AFTER)]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVENTS)
def test_it_dies_as_it_tells_of_something(operator: Watched, undisturbed: Losses, name: str) -> None:
    killer = try_it(operator, undisturbed, frozenset({name}), (Moment.AFTER,))
    assert killer.struck == [(name, Moment.AFTER)]


@pytest.mark.slow
def test_no_write_is_missing_here(operator: Watched, undisturbed: Losses) -> None:
    # This cluster's network enforces no policy, which is told of jobs that live for long enough.
    assert {*try_it(operator, undisturbed, frozenset()).seen} - {f"event {NOT_ENFORCED}"} == {*LIFE, *EVENTS}


@pytest.mark.slow
def test_it_dies_at_every_write_of_one_job(operator: Watched, undisturbed: Losses) -> None:
    """No operator lives for longer than to its next new write."""
    killer = try_it(operator, undisturbed, frozenset({*LIFE, *EVENTS}), steps=LONG)
    print(f"killed {len(killer.struck)} times: {[f'{name}, {moment.value}' for name, moment in killer.struck]}")
    missed = {(name, moment) for name in LIFE for moment in BOTH} - set(killer.struck)
    # The two pods are made, and deleted, at the same time: one call is on its way when the operator dies at the other.
    assert {name.rpartition("-r")[0] for name, _ in missed} <= {"create pods tiny", "delete pods tiny"}, missed
    assert len(missed) <= 4
