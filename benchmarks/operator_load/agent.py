"""One faked agent: its worker starts, joins views and dies as it is told, and computes nothing."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

STEPS = 100_000
Job = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Said:
    """What an agent answers a call."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    after: float = 0.0
    """Seconds."""


@dataclass
class FakeAgent:
    """What the agent of one pod says; times are seconds since the epoch."""

    pod: str
    job: Job
    rank: int | None
    """None: of a standby."""
    address: str
    started: float
    incarnation: int = 0
    phase: str = "Starting"
    since: float = 0.0
    step: int = 0
    view: dict[str, Any] | None = None
    in_view: int = 0
    """The newest view that its worker joined."""
    lost: str | None = None
    draining: bool = False
    exit: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is another event."""
    gone: bool = False

    def said(self, now: float) -> Said:
        """The answer to any call."""
        return Said(json.dumps(self.state(now)).encode())

    def noise(self, now: float) -> bytes | None:
        """What it writes into its stream of events besides them, again and again; None: nothing."""
        return None

    def state(self, now: float) -> dict[str, Any]:
        """As GET /v1/state answers. Its worker is always well: a step may take hours."""
        running = self.phase in ("Ready", "Running")
        worker = {
            "incarnation": self.incarnation,
            "phase": self.phase,
            "since": self.since,
            "pid": 1 if running else None,
            "address": f"{self.address}:{20000 + self.incarnation}" if running else None,
            "view": self.in_view,
            "progress": self._progress() if self.step else None,
            "heartbeat": now if self.incarnation else 0.0,
            "lost": self.lost,
            "exit": self.exit,
        }
        return {
            "pod": self.pod,
            "rank": self.rank,
            "started": self.started,
            "view": self.view,
            "worker": worker,
            "checkpoints": [],
            "scanned": True,
            "evaluations": [],
            "draining": self.draining,
        }

    def start(self, incarnation: int, now: float) -> bool:
        """A worker begins; False: it was begun before."""
        if incarnation <= self.incarnation:
            return False
        self.incarnation, self.in_view, self.exit, self.lost = incarnation, 0, None, None
        self._enter("Starting", now)
        self._tell("workerStarted", now, incarnation=incarnation)
        return True

    def ready(self, now: float) -> None:
        """It has its address."""
        self._enter("Ready", now)
        self._tell("ready", now, address=f"{self.address}:{20000 + self.incarnation}")

    def join(self, view: dict[str, Any], now: float) -> None:
        """It is told a view, joins it and commits one step."""
        if self.view is not None and view["number"] <= self.view["number"]:
            return
        self.view, self.in_view, self.lost = view, view["number"], None
        self._enter("Running", now)
        self.step = view["resume"]["step"]
        self._tell("joined", now, view=self.in_view)
        self.commit(now)

    def commit(self, now: float) -> None:
        """A step is done."""
        self.step += 1
        self._tell("committed", now, progress=self._progress())

    def drop(self, peer: str, now: float) -> None:
        """Its peer is gone."""
        if self.phase != "Running":
            return
        self.lost = f"{peer}: connection reset"
        self._enter("Ready", now)
        self._tell("lostPeer", now, view=self.in_view, message=self.lost)

    def die(self, now: float, how: dict[str, Any] | None = None) -> None:
        """Its worker is killed, or ends as ``how`` says."""
        self.exit = how or {"code": -9, "message": "killed by signal 9", "stderr": []}
        self._enter("Exited", now)
        self._tell("workerExited", now, incarnation=self.incarnation, exit=self.exit)

    def leave(self) -> None:
        """The pod is gone."""
        self.gone = True
        self._wake()

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self.since = phase, now

    def _tell(self, kind: str, now: float, **more: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "time": now, "kind": kind, **more})
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _progress(self) -> dict[str, Any]:
        return {"step": self.step, "steps": STEPS, "epoch": self.step / STEPS, "loss": 0.5}
