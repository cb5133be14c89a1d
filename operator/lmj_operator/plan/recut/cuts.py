"""Which cut the ranks' pods are of, and which pods are of another.

All other parts of the plan know one cut: that of the ranks. The spec that they see has it, whatever the user wants by now.
"""

from dataclasses import replace

from lmj_api.cut import MOST_STAGES, Cut
from lmj_api.status import JobStatus, Phase
from lmj_operator.plan.actions import CreatePod, DeletePod
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.plan import CHANGING_SECONDS, Plan


def with_cut(observed: Observed) -> Observed:
    """``observed`` with the spec as the ranks' pods have it, and pods of other cuts apart."""
    wanted = observed.spec.pipeline.cut
    return cut_into(observed, current_cut(observed.status, wanted), wanted)


def cut_into(observed: Observed, cut: Cut, wanted: Cut) -> Observed:
    """``observed`` with the ranks of ``cut``; the layers are to be cut as ``wanted``."""
    pods, apart = [], []
    for pod in observed.every_pod:
        if pod.cut is None or pod.cut == cut:
            pods.append(pod)
        elif pod.rank is None:
            pods.append(replace(pod, outdated=True))  # a standby that can become none of these ranks
        else:
            apart.append(pod)
    return replace(
        observed,
        spec=observed.spec.cut_into(cut),
        wanted_cut=None if cut == wanted else wanted,
        pods=tuple(pods),
        apart=tuple(apart),
    )


def current_cut(status: JobStatus, wanted: Cut) -> Cut:
    """That of the ranks. One that rests has none: it begins as ``wanted``."""
    if status.phase is Phase.SUSPENDED:
        return wanted
    if status.cut is not None:
        return status.cut
    # Stored by an operator for whom it could not change.
    known = [rank.stage for rank in status.ranks if rank.stage is not None]
    stages = max(known) + 1 if known else min(len(status.ranks), MOST_STAGES)
    return wanted if stages in (0, wanted.stages) else Cut(stages=stages)


def with_cuts_told(made: Plan, observed: Observed) -> Plan:
    """``made``, in which each pod is made of its cut, and those of cuts that nobody wants any more go. ``observed``: before it was split."""
    cut, wanted = made.status.cut, observed.spec.pipeline.cut
    actions = tuple(
        replace(action, cut=cut) if isinstance(action, CreatePod) and action.cut is None and cut != wanted else action
        for action in made.actions
    )
    kept = {follower.pod for follower in made.status.recut.followers} if made.status.recut is not None else set()
    told = {action.name for action in actions if isinstance(action, DeletePod)}
    others = [pod for pod in observed.pods if pod.rank is not None and pod.cut not in (None, cut)]
    gone = [pod.name for pod in others if pod.name not in kept | told]
    if not gone:
        return replace(made, actions=actions)
    reason = f"the layers are in {cut} now" if cut is not None else "it is of another cut"
    # Behind all else: who takes over need not wait for it.
    actions += tuple(DeletePod(name, reason) for name in gone)
    wake = CHANGING_SECONDS if made.wake_after is None else made.wake_after
    return replace(made, actions=actions, wake_after=wake)
