"""From what is observed to what is done: the whole of the operator's judgement.

The status that a plan returns is stored *before* its actions are carried out. So whatever an action needs to be unique (a
view's number, a pod's serial, a restart's count) is durable before anybody can see it, and a plan that is made again after a
crash in between, or from a stale observation, comes to the same actions and counts nothing twice.
"""

from dataclasses import replace

from lmj_api.status import Phase
from lmj_operator.plan.ending import clean_up, completed, expired
from lmj_operator.plan.failures.bounded import with_bounded_times
from lmj_operator.plan.gathering import gathers
from lmj_operator.plan.introductions import with_introductions
from lmj_operator.plan.membership.shrinking import with_who_has_the_state
from lmj_operator.plan.membership.strays import without_strays
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.plan import Plan
from lmj_operator.plan.pods.held import without_held
from lmj_operator.plan.pods.promotions import with_promotions
from lmj_operator.plan.recut.anew import anew
from lmj_operator.plan.recut.cuts import with_cut, with_cuts_told
from lmj_operator.plan.report.phases import TERMINAL
from lmj_operator.plan.running import run
from lmj_operator.plan.scene import Scene, leaving, scene_of
from lmj_operator.plan.suspension import stay, suspend, wake


def plan(observed: Observed, now: float) -> Plan:
    """The plan for what was ``observed`` at ``now`` (seconds since the epoch). Total: every observation has one."""
    observed = without_strays(with_promotions(with_bounded_times(observed, now)))
    if observed.status.phase in TERMINAL or observed.deleted:
        return clean_up(observed)
    scene = scene_of(with_who_has_the_state(with_cut(observed)), now)
    made = _planned(scene)
    held = replace(made, actions=without_held(scene.observed, made.actions))
    return with_introductions(with_cuts_told(held, observed), observed)


def _planned(scene: Scene) -> Plan:
    observed = scene.observed
    if observed.status.phase is Phase.SUSPENDED:
        return stay(scene) if observed.stop_wanted else wake(scene)
    leaves = leaving(observed) and not gathers(observed, scene.ranks, scene.newest, scene.step, scene.now)
    return completed(scene) or expired(scene) or (suspend(scene) if leaves else anew(scene) or run(scene))
