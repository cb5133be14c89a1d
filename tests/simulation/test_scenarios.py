"""Transcripts of what the operator does, in plain text. ``LMJ_REWRITE=1`` writes them again."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from planned import job_spec

from lmj_api.status import Phase
from lmj_operator.plan import Plan

from .cluster import Cluster

SCENARIOS = Path(__file__).parent / "scenarios"


class Story:
    """Runs a cluster and writes down every pass that did or said something new."""

    def __init__(self, **parts: object) -> None:
        self.cluster = Cluster(job_spec(2, **parts), steps=12, checkpoint_every=5)
        self.begin = self.cluster.now
        self.lines: list[str] = []
        self._said = ""

    def say(self, text: str) -> None:
        self.lines.append(f"{self._clock()} -- {text}")

    def go(self, until: Callable[[Cluster, Plan], bool]) -> None:
        for _ in range(100):
            made = self.cluster.reconcile()
            head = f"{made.status.phase}: {made.reason}"
            if head != self._said or made.actions:
                self.lines.append(f"{self._clock()} {head}")
                self._said = head
            self.lines += [f"       {action}" for action in made.actions]
            if until(self.cluster, made):
                return
            self.cluster.tick()
        raise AssertionError("\n".join([*self.lines, "the scenario does not end"]))

    def finish(self) -> str:
        self.go(lambda _, made: made.wake_after is None)
        status = self.cluster.status
        self.lines.append("")
        self.lines.append(
            f"restarts {status.restarts}, steps lost {status.steps_lost}, view {status.view.number if status.view else 0}"
        )
        for i in status.incidents:
            self.lines.append(f"incident: {i.kind} at step {i.step} in view {i.view}, {i.steps_lost} steps lost, {i.seconds} s")
        return "\n".join(self.lines) + "\n"

    def _clock(self) -> str:
        return f"{self.cluster.now - self.begin:5.0f} s"


def at_step(step: int) -> Callable[[Cluster, Plan], bool]:
    return lambda _, made: made.status.progress is not None and made.status.progress.step >= step


def undisturbed() -> str:
    return Story().finish()


def worker_killed() -> str:
    story = Story()
    story.go(at_step(7))
    story.say("rank 1's worker is killed")
    story.cluster.kill_worker(story.cluster.pods["sim-r1-1"])
    return story.finish()


def commit_unheard() -> str:
    story = Story()
    story.go(at_step(7))
    story.cluster.half_commit()
    story.cluster.kill_worker(story.cluster.living()[0])
    story.say("rank 0's worker is killed between its commit and the other's hearing of it")
    return story.finish()


def pod_killed() -> str:
    story = Story()
    story.go(at_step(7))
    story.say("rank 0's pod is killed")
    story.cluster.kill_pod(story.cluster.pods["sim-r0-1"])
    return story.finish()


def standby_takes_over() -> str:
    story = Story(recovery={"standby": 1})
    story.go(at_step(7))
    story.say("rank 0's pod is killed")
    story.cluster.kill_pod(story.cluster.pods["sim-r0-1"])
    return story.finish()


def user_error() -> str:
    story = Story()
    story.cluster.user_error = True
    story.say("the data has no column 'text'")
    text = story.finish()
    assert len(story.cluster.starts) == 2
    return text


def suspend_and_resume() -> str:
    story = Story()
    story.go(at_step(7))
    story.say("Ctrl-C")
    story.cluster.interrupted = True
    story.go(lambda _, made: made.status.phase is Phase.SUSPENDED and made.wake_after is None)
    story.say("the same command again")
    story.cluster.interrupted = False
    return story.finish()


@pytest.mark.parametrize(
    "scenario",
    [undisturbed, worker_killed, commit_unheard, pod_killed, standby_takes_over, user_error, suspend_and_resume],
    ids=lambda s: s.__name__,
)
def test_scenario(scenario: Callable[[], str]) -> None:
    file = SCENARIOS / f"{scenario.__name__}.txt"
    told = scenario()
    if os.environ.get("LMJ_REWRITE"):
        file.write_text(told)
    assert told == file.read_text()
