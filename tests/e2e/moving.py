"""Moves of a running job's ranks on this machine: asked for, seen through the agents, and disturbed at a moment that is chosen."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from faults import last_step
from jobs import DEADLINE, Job, wait_until
from signing import ask
from test_chaos import running, steps_and_losses

from lmj_api.protocol import AgentState, ViewNumber, WorkerPhase
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.signing_key import SigningKey

# A move's copy takes a moment even of so little, so that it can be met. Where the rate is no function of the length, a run may end
# wherever the disturbed one was left; and what a run loses cannot be had from checkpoints that it does not take.
SPARSE = "checkpoint.everySteps=100000"
SETTINGS = (SPARSE, "training.schedule=Constant", "training.warmupRatio=0", "migration.bandwidthMbps=1")


class Phase(StrEnum):
    """How far a move is."""

    STARTING = "its target starts"
    COPYING = "its target copies"
    IN_SYNC = "its target is in sync, and nobody was told"
    LEFT = "all have left the view for its target"


class Victim(StrEnum):
    """What a fault hits. All are killed but the operator, which is stopped for a while: on this machine the run ends with it."""

    TARGET_WORKER = "the target's worker"
    TARGET_POD = "the target's pod"
    SOURCE = "the source's worker"
    OTHER = "the other's worker"
    OPERATOR = "the operator"

    def restarts(self, phase: Phase) -> tuple[int, ...]:
        """What it may cost: a target that is lost is no failure of the job's, and a source that has left may be missed by nobody."""
        if self is Victim.SOURCE and phase is Phase.LEFT:
            return (0, 1)
        return (int(self in (Victim.SOURCE, Victim.OTHER)),)


def migrate(job: Job, *ranks: int) -> dict[str, Any]:
    """What ``lmj migrate`` says of the live move."""
    with migrating(job, *ranks) as process:
        with standing(job):
            wait_until(lambda: all(_born(job, rank) for rank in ranks))
        return _said(process)


def migrate_through_a_checkpoint(job: Job, *ranks: int) -> dict[str, Any]:
    """The same of a move whose target is not made before the source has left."""
    with migrating(job, *ranks) as process:
        return _said(process)


@contextmanager
def migrating(job: Job, *ranks: int) -> Iterator[subprocess.Popen[str]]:
    """``lmj migrate``, until the end of the block."""
    options = [word for rank in ranks for word in ("--rank", str(rank))]
    command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", str(job.output), *options, "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def standing(job: Job) -> Iterator[None]:
    """Training stands until the end of the block.

    While a process imports what it needs, which takes seconds, hundreds of steps would be made by processors that it could have, and made
    again by the run that this one is compared with. Nothing is copied before it is there.
    """
    with stopped(*(worker_of(job, rank["pod"]) for rank in job.status()["ranks"])):
        yield


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """The processes do nothing until the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # it was killed
                os.kill(pid, signal.SIGCONT)


def disturb(job: Job, process: subprocess.Popen[str], rank: int, phase: Phase, victim: Victim) -> None:
    """Move ``rank``, and have ``victim`` hit when the move is in ``phase``; it is made all the same."""
    print(f"step {last_step(job)}: rank {rank} moves, and {victim} is hit when {phase}", flush=True)
    before = job.status()
    source, other = before["ranks"][rank]["pod"], before["ranks"][1 - rank]["pod"]
    with migrating(job, rank) as asked, ExitStack() as operator:
        with standing(job):
            wait_until(lambda: _born(job, rank), process)
            target = _target(job, rank)["pod"]
            if phase is not Phase.STARTING:
                wait_until(lambda: agent(job, source).follower is not None, process)
            # From here on nobody but this test says how the move goes on.
            operator.enter_context(stopped(process.pid))
        if phase is Phase.COPYING:
            wait_until(lambda: agent(job, target).worker.phase is WorkerPhase.FOLLOWING)
        elif phase in (Phase.IN_SYNC, Phase.LEFT):
            wait_until(lambda: agent(job, target).worker.holding is not None)
        if phase is Phase.LEFT:
            # As the operator would.
            tell(job, source, "handover", ViewNumber(number=before["view"]["number"]).to_json())
            wait_until(lambda: all(agent(job, pod).worker.phase is WorkerPhase.READY for pod in (target, source, other)))
        match victim:
            case Victim.TARGET_WORKER:
                os.kill(worker_of(job, target), signal.SIGKILL)
                # Else an operator that goes on at once gives it the rank before anybody knows of its death, which is the rank's then.
                wait_until(lambda: agent(job, target).worker.phase is not WorkerPhase.READY)
            case Victim.TARGET_POD:
                os.killpg(job.pod(target), signal.SIGKILL)
            case Victim.SOURCE:
                os.kill(worker_of(job, source), signal.SIGKILL)
            case Victim.OTHER:
                os.kill(worker_of(job, other), signal.SIGKILL)
            case Victim.OPERATOR if phase is not Phase.LEFT:
                step = last_step(job)
                wait_until(lambda: last_step(job) > step + 10)  # training never waits for it
        operator.close()
        told = _said(asked)
    assert [i["rank"] for i in told["incidents"] if i["kind"] == "Moved"] == [rank], told
    assert all(i["stepsLost"] == 0 for i in told["incidents"]), told
    after = job.status()
    assert after["migrations"] == before["migrations"] + 1
    assert after["restarts"] - before["restarts"] in victim.restarts(phase), after["incidents"]


def leave(job: Job, process: subprocess.Popen[str], step: int) -> None:
    """End the run once it is past ``step``."""
    wait_until(lambda: last_step(job) > step, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)


def assert_as_undisturbed(job: Job, make: Callable[[Path], Job], folder: Path, *more: str) -> Job:
    """``job``, which was left, has the losses, weights and moments of one of ``make`` that was left alone; that one, at its end.

    ``more``: settings beside SETTINGS.
    """
    manifest = newest(job)
    steps = manifest["step"]
    losses = steps_and_losses(job)
    assert [step for step, _ in losses] == list(range(1, steps + 1))
    undisturbed = make(folder)
    with running(undisturbed, steps, *SETTINGS, *more) as process:
        out, err = undisturbed.end(process)
        assert process.returncode == 0, out + err
    assert losses == steps_and_losses(undisturbed)
    # Byte by byte: digests of each rank's file.
    assert manifest["files"] == newest(undisturbed)["files"]
    return undisturbed


def newest(job: Job) -> dict[str, Any]:
    """Manifest of the newest checkpoint."""
    manifests = [json.loads(path.read_bytes()) for path in (job.output / "checkpoints").glob("*/manifest.json")]
    return max(manifests, key=lambda manifest: int(manifest["step"]))


def agent(job: Job, pod: str) -> AgentState:
    """What the agent of ``pod`` says."""
    return AgentState.model_validate_json(tell(job, pod, "state"))


def tell(job: Job, pod: str, what: str, body: str | None = None) -> bytes:
    """The agent's answer to a request, as the operator makes them."""
    run = job.output / ".lmj"
    place = json.loads((run / "pods" / pod / "agent.json").read_bytes())
    words = Path(f"/proc/{place['pid']}/cmdline").read_bytes().decode().split("\0")
    uid = json.loads((run / "job.json").read_bytes())["metadata"]["uid"]
    caller = Caller(SigningKey.of_pem((run / "key").read_bytes()), uid, words[words.index("--uid") + 1])
    method, data = ("GET", None) if body is None else ("POST", body.encode())
    with ask(f"{place['host']}:{place['port']}", caller, method, f"/v1/{what}", data, 30) as answer:
        return answer.read()


def worker_of(job: Job, pod: str) -> int:
    """Process id of the worker of ``pod``."""
    found = _worker(job, pod)
    assert found is not None, f"pod {pod} has no worker"
    return found


def _worker(job: Job, pod: str) -> int | None:
    for pid in job.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        except OSError:
            continue  # it ended meanwhile
        if words[1:4] == ["-m", "lmj_trainer", "worker"] and words[words.index("--pod") + 1] == pod:
            return pid
    return None


def _target(job: Job, rank: int) -> dict[str, Any]:
    """The rank's follower, as the status has it; empty: none."""
    return next((dict(f) for f in job.status()["followers"] if f["rank"] == rank), {})


def _born(job: Job, rank: int) -> bool:
    """Whether the rank's target has its worker."""
    target = _target(job, rank)
    return bool(target) and _worker(job, target["pod"]) is not None


def _said(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    value: dict[str, Any] = json.loads(out)
    return value
