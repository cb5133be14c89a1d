"""The operator's Prometheus metrics."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lmj_api.status import IncidentKind, JobStatus, Phase
from lmj_operator.backend.kubernetes.status_store import Replicas

OfJobs = Iterable[tuple[str, str, Replicas]]
"""Namespace and name of jobs, with how many replicas each has."""


class Metrics:
    """One set a process; ``phases`` tells the phase of every job when it is asked for, ``replicas`` how many those have that share steps."""

    def __init__(self, phases: Callable[[], Iterable[Phase]], replicas: Callable[[], OfJobs] = tuple) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_Jobs(phases))
        registry.register(_Replicas(replicas))
        self.passes = Counter("lmj_passes", "Passes made over jobs", ["result"], registry=registry)
        self.pass_seconds = Histogram(
            "lmj_pass_seconds",
            "Duration of a pass",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self.restarts = Counter("lmj_restarts", "Workers and pods replaced", registry=registry)
        self.disruptions = Counter("lmj_disruptions", "Pods that the cluster took away", registry=registry)
        self.steps_lost = Counter("lmj_steps_lost", "Steps done again after failures", registry=registry)
        self.replicas_lost = Counter("lmj_replicas_lost", "Replicas without which the others went on", registry=registry)
        self.migrations = Counter("lmj_migrations", "Ranks moved to other pods, live or through a checkpoint", registry=registry)
        self.moved_bytes = Counter("lmj_moved_bytes", "Bytes copied for moves: of states, and of gradients", registry=registry)
        self.pause_seconds = Histogram(
            "lmj_migration_pause_seconds",
            "What the switch of a move took more than a step",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
            registry=registry,
        )
        self.follower_seconds = Histogram(
            "lmj_follower_seconds",
            "How long the new pod of a move, or a hot standby, was in a state before the next",
            ["state"],
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
            registry=registry,
        )
        self._calls = Counter("lmj_api_calls", "Calls to the API server", ["verb", "resource", "code"], registry=registry)

    def count_call(self, verb: str, resource: str, code: int) -> None:
        """A call to the API server ended with HTTP ``code`` (0: no answer)."""
        self._calls.labels(verb, resource, str(code)).inc()

    def count(self, before: JobStatus, after: JobStatus) -> None:
        """Count what a pass over a job has changed."""
        for each in self.counts(before, after):
            each()

    def counts(self, before: JobStatus, after: JobStatus) -> Iterator[Callable[[], None]]:
        """What :meth:`count` does, to be done later, when neither status is there any more."""
        yield partial(self.restarts.inc, max(0, after.restarts - before.restarts))
        yield partial(self.disruptions.inc, max(0, after.disruptions - before.disruptions))
        yield partial(self.steps_lost.inc, max(0, after.steps_lost - before.steps_lost))
        yield partial(self.migrations.inc, max(0, after.migrations - before.migrations))
        known = {(i.time, i.rank, i.kind): i for i in before.incidents}
        for incident in after.incidents:
            old = known.get((incident.time, incident.rank, incident.kind))
            if old is None and incident.kind is IncidentKind.REPLICA_LOST:
                yield partial(self.replicas_lost.inc, len(incident.replicas))
            if old is None and incident.copied is not None:
                yield partial(self.moved_bytes.inc, incident.copied.done + incident.copied.gradients)
            if (
                incident.pause_seconds is not None
                and incident.pause_by == "workers"
                and (old is None or old.pause_seconds is None)
            ):
                yield partial(self.pause_seconds.observe, incident.pause_seconds)
        entries = {(f.rank, f.serial): f for f in before.followers}
        for follower in after.followers:
            entry = entries.get((follower.rank, follower.serial))
            if entry is not None and entry.state != follower.state and entry.since > 0:
                yield partial(self.follower_seconds.labels(entry.state).observe, max(0.0, follower.since - entry.since))

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    def __init__(self, phases: Callable[[], Iterable[Phase]]) -> None:
        self._phases = phases

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("lmj_jobs", "Jobs by phase", labels=["phase"])
        count = Tally(self._phases())
        for phase in Phase:
            family.add_metric([phase.value], count[phase])
        yield family


class _Replicas(Collector):
    """Of active jobs alone: what is at rest wants nothing that it has not got."""

    def __init__(self, replicas: Callable[[], OfJobs]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["namespace", "name"]
        present = GaugeMetricFamily("lmj_job_replicas", "Replicas of a job in its newest view", labels=labels)
        wanted = GaugeMetricFamily("lmj_job_replicas_wanted", "Replicas that a job is to have", labels=labels)
        joining = GaugeMetricFamily("lmj_job_replicas_joining", "Replicas of a job on their way into the view", labels=labels)
        for namespace, name, count in self._replicas():
            for family, value in zip((present, wanted, joining), count, strict=True):
                family.add_metric([namespace, name], value)
        yield from (present, wanted, joining)
