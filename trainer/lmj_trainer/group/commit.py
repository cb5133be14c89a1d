"""The commit of a step: applied only when every stage has its gradient for it.

Ranks report *prepared* with the norm of each parameter's gradient; rank 0 answers *commit* with the coefficient of clipping; all apply. So
at any instant all ranks are at step k, or have all they need to reach it. Who has said that it is prepared does not leave the view without
the answer while rank 0 can give one: rank 0 may commit the step, and record it, without knowing that the view is being left.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmj_trainer.errors import UserError
from lmj_trainer.state.loss_scale import SKIP
from lmj_trainer.state.optimizer import clip_coefficient, gradient_norms, total_norm
from lmj_trainer.transport.envelope import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmj_trainer.group.group import Group
    from lmj_trainer.state.stage_state import StageState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """What a rank needs at a step boundary."""

    stop: bool = False
    """It is to leave."""
    pause: bool = False
    """Its follower is to take its place, or the next view is to have other members."""
    unsent: bool = False
    """Its newest snapshot in memory is not with its neighbour yet, so no other is to be begun."""
    without_snapshot: bool = False
    """It has no snapshot in memory, nor is what it trains durable: one is to be taken as soon as possible."""

    def __or__(self, other: Wish) -> Wish:
        """What either needs."""
        return Wish(
            self.stop or other.stop,
            self.pause or other.pause,
            self.unsent or other.unsent,
            self.without_snapshot or other.without_snapshot,
        )


@dataclass(frozen=True)
class Decision:
    """What rank 0 decides for all at a step boundary."""

    checkpoint: bool = False
    """Take a checkpoint of the state."""
    snapshot: bool = False
    """Take a snapshot in memory."""
    stop: bool = False
    """Leave the view after it: a member is to leave."""
    pause: bool = False
    """Leave the view, with nothing to be written: a member's follower takes its place, or the next view has other members."""
    recorded: int = 0
    """All that is to be recorded of steps up to this one is on storage: the others need not keep it."""


@dataclass(frozen=True)
class Commit:
    """A step that all ranks may apply."""

    coefficient: float
    """What gradients are multiplied by; SKIP: the update is left out."""
    decision: Decision
    loss: float | None = None
    """Mean loss of the global batch; None: it overflowed."""
    grad_norm: float | None = None
    """Norm of the whole gradient before clipping; None: it overflowed."""


@dataclass(frozen=True)
class Report:
    """What a rank says of a step when it has all its gradients."""

    norms: Tensor
    """The 2-norm of each of its parameters' gradients, float32 ``[parameters]``."""
    losses: list[float]
    """Of what it computed to the end, each weighed by its part of the samples."""


def agree(
    group: Group,
    state: StageState,
    losses: list[float],
    whole: Callable[[Sequence[Report]], tuple[float, Tensor]],
    limit: float | None,
    rate: float,
    decide: Callable[[Wish], Decision],
    decided: Callable[[Commit], None] = lambda commit: None,
    recorded: Callable[[], None] = lambda: None,
    prepared: Callable[[], None] = lambda: None,
    abandoned: Callable[[], None] = lambda: None,
    wish: Wish | None = None,
) -> Commit:
    """Bring all ranks to the commit of the state's next step, with learning rate ``rate``; its update is still to be made.

    ``whole``: as of :class:`~lmj_trainer.strategy.port.Strategy`. ``wish``: what this rank needs at the boundary. ``decide`` is asked on
    rank 0 only, when all are prepared, with what anybody needs.
    ``decided`` is told on every rank before the commit can be seen by anybody: of a step whose process dies after that, everything is
    known. ``recorded`` is called on rank 0 when its state has the commit, before the others hear of it: what it records is never done again
    because this process died. ``prepared`` is called when this rank has all gradients, before anybody hears of it;
    ``abandoned`` when rank 0 has said that it will not commit the step in this view.
    """
    step, wish = state.step, wish or Wish()
    norms = gradient_norms(state)
    state.prepare()
    prepared()
    group.check()  # it may have broken meanwhile, and from here on others count on this rank
    if not group.leads:
        group.send(group.leader, Kind.PREPARED, step, payload={"norms": norms, "losses": losses, "wish": vars(wish)})
        answer = group.take(Kind.COMMIT, step, promised=True)
        if answer is None:  # rank 0 has left the view, and so will this one, as soon as it hears why
            abandoned()
            answer = group.take(Kind.COMMIT, step)
        commit = Commit(answer["coefficient"], Decision(**answer["decision"]), answer["loss"], answer["grad_norm"])
        decided(commit)
        state.commit(commit.coefficient, rate)
        return commit
    reports = [Report(norms, losses)]
    for rank in group.others:
        word = group.take(Kind.PREPARED, step, rank)
        reports.append(Report(word["norms"], word["losses"]))
        wish |= Wish(**word["wish"])
    loss, all_norms = whole(reports)
    coefficient, told, norm = _judged(state, loss, all_norms, limit)
    commit = Commit(coefficient, decide(wish), told, norm)
    decided(commit)
    # Before the others hear of it: when this process dies in between, its successor knows that the step counts.
    state.commit(commit.coefficient, rate)
    recorded()
    group.tell(Kind.COMMIT, step, payload={**vars(commit), "decision": vars(commit.decision)})
    return commit


def _judged(state: StageState, loss: float, norms: Tensor, limit: float | None) -> tuple[float, float | None, float | None]:
    """Coefficient, loss and norm of the commit of the state's next step. Raises UserError when there is nothing to commit."""
    scale, step = state.loss_scale, state.step + 1
    factor = 1.0 if scale is None else scale.factor
    total = total_norm(norms, factor)
    if math.isfinite(loss) and math.isfinite(total):
        return clip_coefficient(total, limit) / factor, loss, float(total)
    if scale is not None and not scale.exhausted:
        log.info("step %d: gradients overflowed with losses times %g: its update is left out", step, factor)
        return SKIP, loss if math.isfinite(loss) else None, None
    raise UserError(
        f"step {step}: the loss is {loss} and the gradient's norm {float(total)};"
        " lower training.learningRate or set training.maxGradNorm"
    )


def abandon(group: Group, step: int) -> None:
    """On rank 0, which leaves the view before the commit of the 0-based ``step``: nobody is to wait for that."""
    group.tell(Kind.COMMIT, step)
