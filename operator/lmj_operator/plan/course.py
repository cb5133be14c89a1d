"""Where the ranks go from here: the view that they are to be in, or what that waits for."""

from dataclasses import dataclass

from lmj_api.view import View
from lmj_operator.plan.actions import Action
from lmj_operator.plan.pods.wants import view_actions
from lmj_operator.plan.scene import Scene
from lmj_operator.plan.script_views import Group


@dataclass(frozen=True, slots=True)
class Course:
    """Where the ranks are to go from here."""

    view: View | None
    why: str
    actions: tuple[Action, ...]
    waits: tuple[float, ...]
    """Seconds until something is due, each."""


def group_of(scene: Scene, not_before: float) -> Group:
    """The ranks of a job of a script. ``not_before``: what was restarted waits until then."""
    return Group(scene.observed, scene.ranks, scene.wanted, scene.newest, scene.left_since, not_before, scene.now)


def course_of_script(scene: Scene, not_before: float, reason: str) -> Course:
    """Of a job of a script: nobody looks for checkpoints, and who is there goes on."""
    choice = group_of(scene, not_before).next_view()
    view, waits = choice.membership.view, (*choice.due, *((not_before - scene.now,) if scene.now < not_before else ()))
    why = choice.membership.reason if choice.membership.formed or not reason else reason
    if view is None:
        return Course(None, why, choice.actions, waits)
    if choice.membership.formed:
        view = view.model_copy(update={"cut": scene.observed.spec.pipeline.cut})
    return Course(view, why, choice.actions + view_actions(scene.ranks, view), waits)
