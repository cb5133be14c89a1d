"""The operator's Prometheus metrics."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lmj_api.status import Phase


class Metrics:
    """One set a process; ``phases`` tells the phase of every job when it is asked for."""

    def __init__(self, phases: Callable[[], Iterable[Phase]]) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_Jobs(phases))
        self.passes = Counter("lmj_passes", "Passes made over jobs", ["result"], registry=registry)
        self.pass_seconds = Histogram(
            "lmj_pass_seconds",
            "Duration of a pass",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self.restarts = Counter("lmj_restarts", "Workers and pods replaced", registry=registry)
        self.steps_lost = Counter("lmj_steps_lost", "Steps done again after failures", registry=registry)
        self.migrations = Counter("lmj_migrations", "Ranks moved to other pods while training went on", registry=registry)
        self._calls = Counter("lmj_api_calls", "Calls to the API server", ["verb", "resource", "code"], registry=registry)

    def count_call(self, verb: str, resource: str, code: int) -> None:
        """A call to the API server ended with HTTP ``code`` (0: no answer)."""
        self._calls.labels(verb, resource, str(code)).inc()

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
