"""A job that is to have fewer replicas, and has lost all that it would keep: what was trained is with one of the others."""

from dataclasses import replace

from lmj_api.protocol import WorkerPhase
from lmj_api.topology import Topology
from lmj_api.view import Member
from lmj_operator.plan.membership.membership import newest_view
from lmj_operator.plan.observe.facts import ENDED
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase


def with_who_has_the_state(observed: Observed) -> Observed:
    """``observed``, with as many replicas as it takes to have one with the state of training.

    Those that the job keeps follow that one. Once they are in the view, it leaves as any other that is too many.
    """
    spec, newest = observed.spec, newest_view(observed.status, observed.pods)
    if spec.strategy.stateless or newest is None or all(m.rank < spec.world_size for m in newest.members):
        return observed
    pods = {pod.name: pod for pod in observed.pods}
    able = [m.rank for m in newest.members if _may_have_it(m, pods.get(m.pod))]
    first = next(iter(Topology.of_view(spec.pipeline.stages, able).present), 0) if able else 0
    if first < spec.data_parallel.replicas:
        return observed
    asked, parts = spec.data_parallel.replicas, spec.data_parallel.model_copy(update={"replicas": first + 1})
    return replace(observed, spec=spec.model_copy(update={"data_parallel": parts}), asked_replicas=asked)


def _may_have_it(member: Member, pod: PodObserved | None) -> bool:
    """Whether ``member`` of a view may have the rank's state yet. A pod that does not answer may; one that was replaced is gone."""
    if pod is None or pod.phase is not PodPhase.RUNNING or pod.rank != member.rank:
        return False
    if pod.agent is None:
        return True
    worker = pod.agent.worker
    return worker.phase not in ENDED and (worker.phase is not WorkerPhase.READY or worker.holding is not None)
