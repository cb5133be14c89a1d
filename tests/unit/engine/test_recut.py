"""Workers of another cut of the layers have what those that train have, to the bit, each from as many sources as hold a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmj_api.cut import Cut
from lmj_api.protocol import Holding, Recut
from lmj_api.spec import Lora, Model, Scratch
from lmj_trainer.follow import source as source_module
from lmj_trainer.follow import stream as stream_module
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import CHUNK, StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.task.causal_lm.heads import HEADS as LANGUAGE
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.transport.feed import Done
from lmj_trainer.transport.parts import Begin, Body, Committed, InSync, Part, State
from lmj_trainer.worker.recut import shares_of

from .conftest import RANDOM, small_config, small_state
from .cuts import Cuts, Make, Rank, made_up
from .pair import eventually

pytestmark = pytest.mark.integration

ONE, TWO, THREE = [range(3)], [range(2), range(2, 3)], [range(1), range(1, 2), range(2, 3)]
CHANGES = [(ONE, TWO), (TWO, ONE), (TWO, THREE), (THREE, TWO), (TWO, [range(1), range(1, 3)])]


def of_all_weights(layers: range, filled: bool) -> Any:
    return small_state(small_config(), layers, model=RANDOM if filled else None)


def of_adapters(layers: range, filled: bool) -> tuple[Stage, StageState]:
    stage = Stage(small_config(), HEADS, layers, seed=3, lora=Lora())
    freeze(stage, Model(scratch=Scratch()), torch.device("cpu"))
    state = StageState(stage, torch.device("cpu"))
    if filled:
        initialise(stage, state, Model(scratch=Scratch(), lora=Lora()))
    return stage, state


def of_tied(layers: range, filled: bool) -> tuple[Stage, StageState]:
    """With one table of tokens at both ends."""
    stage = Stage(small_config("gpt2", tie_word_embeddings=True), LANGUAGE, layers, seed=3)
    state = StageState(stage, torch.device("cpu"))
    if filled:
        initialise(stage, state, RANDOM)
        for slot in state.slots:
            if slot.saved_as in stage.tied.values():
                slot.weight.copy_(made_up("table", 0, slot.weight.shape))
    return stage, state


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cuts]]:
    # A copy of many parts, of which few are under way at once, takes several steps.
    monkeypatch.setattr(source_module, "_PART", 1 << 10)
    monkeypatch.setattr(source_module, "_COPY_PART", 1 << 10)
    monkeypatch.setattr(stream_module, "LEAST_COPY_WINDOW", 1 << 14)
    for module in (source_module, stream_module):
        monkeypatch.setattr(module, "WINDOW", 1 << 14)
    made: list[Cuts] = []

    def begin(old: Sequence[range], new: Sequence[range], make: Make = of_all_weights) -> Cuts:
        made.append(Cuts(make, old, new))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.mark.parametrize("make", [of_all_weights, of_adapters, of_tied])
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_another_cut_takes_over_at_a_step_boundary_with_the_same_bits(
    cuts: Callable[..., Cuts], old: list[range], new: list[range], make: Make
) -> None:
    both, alone = cuts(old, new, make), cuts(ONE, ONE, make)
    for _ in range(2):
        both.train()
    both.follow(both.recut)
    both.train_until_in_sync()
    for _ in range(3):
        both.train()
    assert both.hand_over() == [Holding(step=both.step)] * len(new)
    both.assert_equal()
    while alone.step < both.step:
        alone.train()
    undisturbed = alone.tensors([alone.ranks[0].state])
    mine = both.tensors([each.state for each in both.nexts])
    assert [name for name in undisturbed if not torch.equal(undisturbed[name], mine[name])] == []
    for slot in [slot for each in both.nexts for slot in each.state.slots if slot.copy_of is not None]:
        assert torch.equal(slot.weight, mine[slot.saved_as])
        assert torch.equal(slot.exp_avg, mine[f"exp_avg/{slot.saved_as}"])
    # Whoever is the first to say so ends what the others send.
    assert all("it takes over at step" in reason for rank in both.ranks for reason in rank.lost)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_another_cut_takes_over_before_its_last_update(
    cuts: Callable[..., Cuts], old: list[range], new: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever source tells of it first, and that others tell of it too."""
    both = synced(cuts(old, new))
    step = both.step + 1
    both.gradients()
    both.prepare()
    both.commit(last=True)
    for rank in both.ranks:
        rank.source.hand_over()
    for each in both.nexts:
        each.line.wait(lambda each=each: each.line.over)
        assert each.line.told[-1][2] == Holding(step=step)
        assert each.state.step == step - 1
    for each in [*both.ranks, *both.nexts]:
        each.optimizer.apply()
    assert both.step == step
    both.assert_equal()


def test_each_takes_what_its_stage_has(cuts: Callable[..., Cuts]) -> None:
    both = cuts(TWO, THREE)
    one, two = (shares_of(both.recut, rank.stage, rank.state) for rank in both.ranks)
    assert {address: bool(names) for address, names in one.items()} == {"new-0": True, "new-1": True, "new-2": False}
    assert {address: bool(names) for address, names in two.items()} == {"new-0": False, "new-1": False, "new-2": True}
    for each in both.nexts:
        name = each.transport.address
        assert one[name] | two[name] == {slot.name for slot in each.state.slots}
    with_more_than_layers = Recut(cut=Cut(stages=4), followers=both.members())
    assert shares_of(with_more_than_layers, both.ranks[0].stage, both.ranks[0].state) == {}
    assert shares_of(None, both.ranks[0].stage, both.ranks[0].state) == {}


def synced(both: Cuts) -> Cuts:
    both.follow(both.recut)
    both.train_until_in_sync()
    return both


def test_what_came_of_one_source_alone_is_no_state(cuts: Callable[..., Cuts]) -> None:
    """Nor is it one for a worker after this one, which believes the memory."""
    both = cuts(TWO, ONE)
    both.follow(both.recut, ranks=[0])
    for _ in range(20):
        both.train()
        if both.ranks[0].source.in_sync:
            break
    eventually(lambda: both.ranks[0].source.in_sync)
    both.train()
    assert both.nexts[0].state.holding is None
    assert not both.in_sync()
    both.follow(both.recut)
    both.train_until_in_sync()
    eventually(lambda: both.nexts[0].state.holding == Holding(step=both.step))
    both.train()
    both.hand_over()
    both.assert_equal()


def test_the_first_word_of_a_commit_is_enough(cuts: Callable[..., Cuts]) -> None:
    """Rank 0 may be the only one that knows of it, and die; of the others the gradients are here."""
    both = synced(cuts(TWO, ONE))
    last = both.step
    both.gradients()
    both.prepare()
    both.commit(ranks=[0])
    (new,) = both.nexts
    eventually(lambda: new.state.holding == Holding(step=last + 1))
    both.commit(ranks=[1])
    both.train()
    both.hand_over()
    both.assert_equal()


def test_a_step_is_prepared_when_all_sources_have_said_so(cuts: Callable[..., Cuts]) -> None:
    both = synced(cuts(TWO, ONE))
    (new,), last = both.nexts, both.step
    both.gradients()
    both.prepare(ranks=[1])
    assert new.state.holding == Holding(step=last)
    both.prepare(ranks=[0])
    assert new.state.holding == Holding(step=last, prepared=True)
    # The view breaks, and who knows of the commit tells it in the next one.
    for rank in both.ranks:
        rank.source.abandoned()
    both.commit()
    assert both.hand_over() == [Holding(step=last + 1)]
    both.assert_equal()


@pytest.mark.parametrize("said", [0, 1])
def test_one_that_is_told_to_leave_takes_no_step_that_it_lacks_a_part_of(cuts: Callable[..., Cuts], said: int) -> None:
    """Its sources leave the view with it: what they would commit it would not have."""
    both = synced(cuts(TWO, ONE))
    (new,), last = both.nexts, both.step
    for rank in both.ranks:
        rank.transport.join(1, 0, {})
    both.gradients()
    both.prepare(ranks=[said])
    new.transport.feed.stop("a newer view")
    new.line.wait(lambda: new.line.over)
    assert new.line.told[-1][2] == Holding(step=last)
    both.prepare(ranks=[1 - said])
    assert both.ranks[1 - said].transport.inbox._broken is not None


def test_a_source_that_is_lost_ends_all_and_who_follows_again_has_the_rest(cuts: Callable[..., Cuts]) -> None:
    both = synced(cuts(TWO, ONE))
    (new,) = both.nexts
    both.gradients()
    both.prepare()
    new.transport.feed.lose("its source is gone")
    new.line.wait(lambda: new.line.over)
    assert new.line.told[-1][2] == Holding(step=both.step, prepared=True), "another rank may know of the commit"
    both.commit()
    both.train()
    assert [len(rank.lost) for rank in both.ranks] == [1, 1]
    new.line.told.clear()
    both.follow(both.recut)
    both.train_until_in_sync()
    both.hand_over()
    both.assert_equal()


def test_who_lacks_nothing_is_in_sync_without_a_copy(cuts: Callable[..., Cuts], monkeypatch: pytest.MonkeyPatch) -> None:
    both = synced(cuts(TWO, THREE))
    both.hand_over()
    for each in both.nexts:
        each.line.told.clear()
    monkeypatch.setattr(source_module, "State", None)  # nothing is copied
    both.follow(both.recut)
    for rank in both.ranks:
        rank.source.boundary()
    for each in both.nexts:
        each.line.wait(lambda each=each: each.line.in_sync)
    both.train()
    both.hand_over()
    both.assert_equal()


def test_a_part_that_differs_is_found_out(cuts: Callable[..., Cuts]) -> None:
    both = synced(cuts(TWO, ONE))
    both.hand_over()
    (new,) = both.nexts
    # Of the same step, as it says; but a bit of what the second source has is not what it was.
    new.state.slots[-1].weight.view(-1)[0] += 1
    new.line.told.clear()
    both.follow(both.recut)
    for rank in both.ranks:
        rank.source.boundary()
    new.line.wait(lambda: new.line.over)
    assert "is not that of its source" in new.line.told[-1][1]
    assert new.line.told[-1][2] is None
    eventually(lambda: any("is not that of its source" in reason for reason in both.ranks[1].lost))


def test_another_who_brings_the_same_ends_what_was_followed(cuts: Callable[..., Cuts]) -> None:
    """A rank's place may have been taken: what its predecessor sends is of a view that is over."""
    both = synced(cuts(TWO, ONE))
    (new,), one = both.nexts, both.ranks[0]
    begin = Begin("elsewhere", one.state.identity, tuple(one.state.placed()), one.state.frozen)
    answers: list[tuple[str | None, int]] = []
    new.transport.feed.put(Part(7, 0, begin), lambda *answer: answers.append(answer))
    new.line.wait(lambda: any("another stream has begun" in message for _, message, _ in new.line.told))
    eventually(lambda: bool(answers))
    assert answers == [(None, both.step)]
    both.train()
    eventually(lambda: all(rank.lost for rank in both.ranks))


def test_a_commit_of_what_is_not_all_here_ends_it(cuts: Callable[..., Cuts]) -> None:
    """One source may be cut off from the others and from the operator, and not from who follows it."""
    both = synced(cuts(TWO, ONE))
    (new,), last = both.nexts, both.step
    both.gradients()
    both.prepare(ranks=[0])
    both.commit(ranks=[0])
    new.line.wait(lambda: new.line.over)
    assert "not all of its gradients are here" in new.line.told[-1][1]
    assert new.line.told[-1][2] == Holding(step=last)


def test_sources_may_be_at_different_steps_when_they_compare(cuts: Callable[..., Cuts], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream comes on its own. It is one state when both are of one step."""
    both = cuts(TWO, ONE)
    (new,), (fast, slow) = both.nexts, both.ranks
    both.train()
    commits, compared = Held(slow, Committed, monkeypatch), Held(fast, InSync, monkeypatch)
    begins = Held(fast, Begin, monkeypatch)
    both.follow(both.recut)
    while True:
        both.gradients()
        # Nobody compares while gradients are out.
        if fast.source._streams["new-0"].in_sync:
            break
        commits.release()
        # From its first unit on a follower is told of commits.
        if slow.source._streams["new-0"].units:
            begins.release()
        both.prepare()
        both.commit()
    assert commits.parts
    compared.release()
    eventually(lambda: compared.taken == 1)
    assert not new.line.in_sync, "what the other brings is of the step before"
    assert new.state.holding is None
    commits.release()
    monkeypatch.undo()
    both.prepare()
    both.commit()
    both.train_until_in_sync()
    both.train()
    both.hand_over()
    both.assert_equal()


class Held:
    """Parts of one kind that a rank sends, until they are released."""

    def __init__(self, rank: Rank, kind: type[Body], monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[Callable[[], None]] = []
        self.taken = 0
        tell = rank.transport.tell

        def told(address: str, part: Part, done: Done) -> None:
            def taken(problem: str | None, answer: int) -> None:
                self.taken += isinstance(part.body, kind)
                done(problem, answer)

            if isinstance(part.body, kind):
                self.parts.append(lambda: tell(address, part, taken))
            else:
                tell(address, part, done)

        monkeypatch.setattr(rank.transport, "tell", told)

    def release(self) -> None:
        while self.parts:
            self.parts.pop(0)()


def test_an_update_in_pieces_is_that_of_whole_parameters() -> None:
    """A parameter is cut into the same pieces in every cut, from its own start: so its last elements are rounded as ever."""
    _, state = of_all_weights(range(3), True)
    for each in state.placed():
        spans = list(each.units)
        assert [part.start for _, part in spans] == list(range(0, each.count, CHUNK))
        assert spans[-1][1].stop == each.count
        assert spans[0][0].start == each.start
        assert spans[-1][0].stop == each.stop
    assert max(slot.weight.numel() for slot in state.slots) > CHUNK


def test_parts_of_the_state_are_sent_in_whole_units(cuts: Callable[..., Cuts], monkeypatch: pytest.MonkeyPatch) -> None:
    both = cuts(ONE, TWO)
    tell, spans = both.ranks[0].transport.tell, []

    def seen(address: str, part: Part, done: Any) -> None:
        if isinstance(part.body, State):
            spans.append((address, part.body.first, part.body.last))
        tell(address, part, done)

    monkeypatch.setattr(both.ranks[0].transport, "tell", seen)
    synced(both)
    for each in both.nexts:
        mine = [(first, last) for address, first, last in spans if address == each.transport.address]
        assert [first for first, _ in mine] == [0, *(last for _, last in mine[:-1])]


@pytest.mark.parametrize("wrong", ["another job", "no parameters", "a parameter of another stage", "other frozen weights"])
def test_what_is_of_another_memory_is_refused(cuts: Callable[..., Cuts], wrong: str) -> None:
    both = cuts(ONE, TWO, of_adapters)
    (first, _), state = both.nexts, both.ranks[0].state
    here = {slot.name for slot in first.state.slots}
    begin = Begin("elsewhere", state.identity, tuple(state.placed(here)), state.frozen)
    match wrong:
        case "another job":
            begin = replace(begin, identity="another")
        case "no parameters":
            begin = replace(begin, placed=())
        case "a parameter of another stage":
            begin = replace(begin, placed=tuple(state.placed()))
        case "other frozen weights":
            begin = replace(begin, frozen={**state.frozen, next(iter(first.state.frozen)): "other"})
    answers: list[tuple[str | None, int]] = []
    first.transport.feed.put(Part(7, 0, begin), lambda *answer: answers.append(answer))
    eventually(lambda: bool(answers))
    assert answers == [("the follower's memory has another layout: it is not of the same job, stage or version", -1)]
    assert not first.line.told, "it is nobody's follower"
