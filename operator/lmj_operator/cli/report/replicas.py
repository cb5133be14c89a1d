"""Which replicas a run had when, as far as its incidents tell: times are seconds since it began."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.status import Incident, IncidentKind, JobStatus
from lmj_api.topology import Topology

_STAGES, _REPLICAS = 64, 1024
"""No job has more: a file may say anything."""
Told = Sequence[tuple[Incident, float]]
"""Incidents, each with when it was noticed."""


@dataclass(frozen=True)
class Replicas:
    """Those that the job had, and when each of them was not in the view."""

    topology: Topology
    """With as many as it ever had; with one: there is nothing to tell of replicas."""
    told: Told
    """Incidents of replicas, in order of time."""
    wanted: int
    """How many it had at the beginning."""
    end: float

    @classmethod
    def of(cls, status: JobStatus, told: Told, end: float) -> "Replicas":
        """What ``status`` and those of its incidents that are ``told`` say."""
        ordered = sorted(told, key=lambda each: each[1])
        stages = max((r.stage + 1 for r in status.ranks if r.stage is not None and 0 <= r.stage < _STAGES), default=1)
        last = max((r.replica + 1 for r in status.ranks if r.replica is not None and 0 <= r.replica < _REPLICAS), default=1)
        scaled = [i for i, _ in ordered if i.kind is IncidentKind.SCALED]
        first = scaled[0].replicas_before if scaled else None
        most = max([last, *(replica + 1 for i, _ in ordered for replica in i.replicas if 0 <= replica < _REPLICAS)])
        return cls(Topology(stages, most), ordered, last if first is None else first, end)

    @property
    def ranks(self) -> Sequence[int]:
        """All that there ever were, where there is something to tell of replicas."""
        return self.topology.ranks if self.topology.replicas > 1 else ()

    def name(self, rank: int) -> str:
        """What ``rank`` is called."""
        if self.topology.replicas == 1:
            return f"rank {rank}"
        stage = f", stage {self.topology.stage(rank)}" if self.topology.stages > 1 else ""
        return f"replica {self.topology.replica(rank)}{stage}"

    def lives(self, rank: int) -> list[tuple[float, float]]:
        """When the job had ``rank``."""
        replica = self.topology.replica(rank)
        begin = 0.0 if self.topology.replicas == 1 or replica < self.wanted else None
        lives = []
        for incident, at in self.told:
            if incident.kind is not IncidentKind.SCALED or replica not in incident.replicas:
                continue
            grows = (incident.replicas_after or 0) > (incident.replicas_before or 0)
            if grows and begin is None:
                begin = at
            elif not grows and begin is not None:
                lives.append((begin, min(self.end, at + (incident.whole_seconds or 0.0))))
                begin = None
        return [*lives, (begin, self.end)] if begin is not None else lives

    def absences(self, rank: int) -> list[tuple[float, float, str]]:
        """When the job had ``rank`` and it was not in the view, with what that was in one line."""
        replica, found = self.topology.replica(rank), []
        for incident, at in self.told:
            comes = incident.kind is IncidentKind.REPLICA_LOST or (incident.replicas_after or 0) > (incident.replicas_before or 0)
            if not comes or replica not in incident.replicas:
                continue
            until = self.end if incident.whole_seconds is None else at + incident.whole_seconds
            was = "lost" if incident.kind is IncidentKind.REPLICA_LOST else "asked for"
            back = (
                f"in the view from step {incident.whole_step}" if incident.whole_seconds is not None else "not in the view since"
            )
            for begin, end in self.lives(rank):
                if max(at, begin) < min(until, end):
                    title = f"replica {replica} was {was} at step {incident.step}, {back}"
                    found.append((max(at, begin), min(until, end), title))
        return found
