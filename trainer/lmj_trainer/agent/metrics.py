"""The agent's state as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmj_api.protocol import AgentState, WorkerPhase
from lmj_api.topology import Topology

_LABELS = ("rank", "stage", "replica", "pod")


class _States(Collector):
    """One state, told once."""

    def __init__(self, state: AgentState, topology: Topology, events: int, server_bytes: int | None) -> None:
        self._state = state
        self._topology = topology
        self._events = events
        self._server_bytes = server_bytes

    def collect(self) -> Iterator[Metric]:
        state, worker = self._state, self._state.worker
        rank, of = state.rank, self._topology
        place = ("", "", "") if rank is None else (str(rank), str(of.stage(rank)), str(of.replica(rank)))
        labels = (*place, state.pod)
        phase = GaugeMetricFamily(
            "lmj_worker_phase", "1 for the phase that the worker is in, 0 for others.", labels=[*_LABELS, "phase"]
        )
        for each in WorkerPhase:
            phase.add_metric([*labels, each.value], float(worker.incarnation > 0 and each is worker.phase))
        yield phase
        counter = CounterMetricFamily("lmj_events", "Events in the agent's life.", labels=_LABELS)
        counter.add_metric(labels, self._events)
        yield counter
        for name, help_text, value in _gauges(state, self._server_bytes):
            if value is not None:
                gauge = GaugeMetricFamily(name, help_text, labels=_LABELS)
                gauge.add_metric(labels, float(value))
                yield gauge


def render(state: AgentState, topology: Topology, events: int, server_bytes: int | None) -> bytes:
    """Prometheus text of ``state``. ``topology``: of the job; ``events``: number of the newest event; ``server_bytes``: memory of the fork
    server, if there is one.
    """
    registry = CollectorRegistry()
    registry.register(_States(state, topology, events, server_bytes))
    return generate_latest(registry)


def _gauges(state: AgentState, server_bytes: int | None) -> Iterator[tuple[str, str, float | None]]:
    worker, progress = state.worker, state.worker.progress
    yield "lmj_agent_start_time_seconds", "When the agent started, seconds since the epoch.", state.started
    yield "lmj_agent_warm", "1 when the pod is a standby that is ready to become a rank.", state.warm
    yield "lmj_agent_draining", "1 when the pod was asked to leave.", state.draining
    yield (
        "lmj_agent_fork_server_bytes",
        "Memory of the process that workers are forked from; what it shares with the worker counts half.",
        server_bytes,
    )
    yield "lmj_view", "Number of the newest view that was accepted.", state.newest_view
    yield "lmj_worker_incarnation", "Worker processes that were started in this pod.", worker.incarnation
    yield "lmj_worker_heartbeat_seconds", "When the worker last made progress, seconds since the epoch.", worker.heartbeat
    yield "lmj_rank_compute_seconds", "Seconds of work of a step, without waiting for other ranks.", worker.compute_seconds
    yield "lmj_rank_waiting_seconds", "Seconds of a step in which the rank waits for others.", worker.waiting_seconds
    good = [checkpoint.step for checkpoint in state.checkpoints if checkpoint.problem is None]
    yield "lmj_checkpoint_step", "Step of the newest checkpoint that can be used.", max(good, default=None)
    if progress is None:
        return
    yield "lmj_step", "Committed steps.", progress.step
    yield "lmj_steps", "Steps of the whole job.", progress.steps
    yield "lmj_loss", "Mean loss of the newest step.", progress.loss
    yield "lmj_learning_rate", "Learning rate of the newest step.", progress.learning_rate
    yield "lmj_grad_norm", "Gradient norm of the newest step, before clipping.", progress.grad_norm
    yield "lmj_samples_per_second", "Throughput over the last seconds.", progress.samples_per_second
