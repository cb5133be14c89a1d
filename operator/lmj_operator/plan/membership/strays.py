"""Checkpoints of members that went on in an older view than the newest.

Pods that nobody can reach, with storage that they can, train on in the view that they are in, and may save what they come to. Those steps
are done again in the newest view, and recorded there: what was saved of them is as if it were not there.
"""

from dataclasses import replace

from lmj_api.names import parse_checkpoint_name, run_of_checkpoint
from lmj_api.protocol import CheckpointInfo
from lmj_api.run import Run
from lmj_api.view import View
from lmj_operator.plan.membership.membership import newest_view
from lmj_operator.plan.observe.observed import Observed, PodObserved


def without_strays(observed: Observed) -> Observed:
    """``observed``, where no agent reports such a checkpoint."""
    newest = newest_view(observed.status, observed.pods)
    run = observed.run
    if newest is None or not any(is_stray(c, newest, run) for pod in observed.pods if pod.agent for c in pod.agent.checkpoints):
        return observed
    return replace(observed, pods=tuple(_without(pod, newest, run) for pod in observed.pods))


def is_stray(checkpoint: CheckpointInfo, newest: View, run: Run) -> bool:
    """Whether it was written in an older view than ``newest`` of ``run``, of a step after the one that this began with.

    What another run of the job has saved is older than all views of this one: its pods may be there yet when this one begins.
    """
    try:
        _, number = parse_checkpoint_name(checkpoint.name)
    except ValueError:
        return False
    another = run.known and run_of_checkpoint(checkpoint.name) not in (None, run.short)
    # 0: the name reports none.
    return (another or 0 < number < newest.number) and checkpoint.step > newest.resume.step


def _without(pod: PodObserved, newest: View, run: Run) -> PodObserved:
    if pod.agent is None:
        return pod
    kept = [c for c in pod.agent.checkpoints if not is_stray(c, newest, run)]
    return replace(pod, agent=pod.agent.model_copy(update={"checkpoints": kept}))
