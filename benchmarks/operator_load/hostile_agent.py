"""Agents of hostile jobs: those whose workers die as soon as they start, and those who answer what no agent answers.

A job's name says which: ``storm-0001``, ``pattern-0002``, ``liar-0003``; the number of a liar says how it lies. All others are honest.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from operator_load.agent import FakeAgent, Job, Said

LINES = 64
"""Events in a piece of noise."""
LONGEST_LINES = ["a" * 300] * 11
"""Of stderr: what is matched with the patterns of a job's rules."""
_TEXT = "x" * 900
_LATER = 4_000_000_000.0
"""A time that is after all others."""
_COMMITTED = b'{"seq":%d,"time":%f,"kind":"committed","progress":{"step":%d,"steps":1000000000000,"epoch":0.5,"loss":0.5}}\n'


class DyingAgent(FakeAgent):
    """Its worker dies as soon as it is started."""

    def ready(self, now: float) -> None:
        """As the base says; but it never is."""
        self.die(now, {"code": 1, "message": LONGEST_LINES[0], "stderr": LONGEST_LINES})


@dataclass
class LyingAgent(FakeAgent):
    """It says what nobody should believe."""

    told: int = 0
    """Events of its noise."""

    def said(self, now: float) -> Said:
        """As the base says."""
        lie = _ANSWERS[_number(self.job) % len(_ANSWERS)]
        return super().said(now) if lie is None else lie(self, now)

    def noise(self, now: float) -> bytes | None:
        """As the base says."""
        kind = _NOISES[_number(self.job) % len(_NOISES)]
        if kind != "committed":
            return None if kind is None else _NOISE[kind]
        first, self.told = self.told, self.told + LINES
        return b"".join(_COMMITTED % (number, now, number) for number in range(first + 1, self.told + 1))

    def flapping(self, now: float) -> Said:
        """Each time in another phase, of another worker and view."""
        self.told += 1
        phases = ("Starting", "Ready", "Running", "Exited", "Completed", "Drained", "Following")
        state = self.state(now)
        state["worker"] |= {"phase": phases[self.told % len(phases)], "incarnation": self.told, "view": self.told, "since": now}
        return Said(json.dumps(state).encode())

    def full(self, now: float) -> Said:
        """As much as an agent may say at most."""
        names = [{"name": f"step-{step:09d}-v1", "step": step, "problem": _TEXT[:500]} for step in range(1000)]
        steps = list(range(1000))
        state = self.state(now) | {"checkpoints": names}
        state["worker"] |= {"snapshots": {"own": steps, "kept": steps}, "lost": _TEXT}
        return Said(json.dumps(state).encode())


_ANSWERS: tuple[Callable[[LyingAgent, float], Said] | None, ...] = (
    lambda agent, now: Said(b"\xff\x00 no JSON"),
    lambda agent, now: Said(b"[" * (4 << 20)),
    lambda agent, now: Said(b"", after=60.0),
    lambda agent, now: Said(b"", 302, {"Location": "http://127.0.0.1:1/"}),
    LyingAgent.flapping,
    LyingAgent.full,
    None,
    None,
    None,
    None,
)
"""What each of ten answers; None: the truth."""
_NOISES = (None, None, None, None, "lostPeer", None, "committed", "lostPeer", "workerExited", "")
"""Kind of the events that it sends without end; empty: a line without end."""
_EVENTS = (
    {"kind": "lostPeer", "view": 1, "message": _TEXT},
    {"kind": "workerExited", "incarnation": 1, "exit": {"code": 1, "message": _TEXT, "stderr": []}},
)
_NOISE = {str(event["kind"]): LINES * (json.dumps({"seq": 1, "time": _LATER, **event}).encode() + b"\n") for event in _EVENTS}
_NOISE[""] = b"x" * 16_384


def agent_of(pod: str, job: Job, rank: int | None, address: str, now: float) -> FakeAgent:
    """The agent of ``pod``, as the name of its job says."""
    kinds: dict[str, type[FakeAgent]] = {"storm": DyingAgent, "pattern": DyingAgent, "liar": LyingAgent}
    return kinds.get(job[1].partition("-")[0], FakeAgent)(pod, job, rank, address, now)


def _number(job: Job) -> int:
    return int(job[1].rpartition("-")[2])
