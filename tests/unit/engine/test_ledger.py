"""A state that outlives its process, wherever in a step that was killed."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lmj_api.protocol import Holding
from lmj_api.spec import Model, Training
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.ledger import HEADER, Count, Ledger
from lmj_trainer.state.loss_scale import SKIP, LossScale
from lmj_trainer.state.optimizer import AdamW, Optimizer, optimizer_of
from lmj_trainer.state.stage_state import Best, StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.task.sequence_classification.heads import HEADS

from .conftest import RANDOM, small_config

pytestmark = pytest.mark.integration

TRAINING = Training(weight_decay=0.02)
SGD = Training.model_validate({"optimizer": "SGD", "momentum": 0.9, "weightDecay": 0.02})
COEFFICIENT, RATE = 0.37, 1e-3
SMALL = small_config(vocab_size=1201, num_hidden_layers=1)
"""Of a few groups."""
ADAPTED = small_config()
ADAPTERS = Model.model_validate({"scratch": {}, "lora": {}})
CALLS = ("_foreach_copy_", "_foreach_mul_", "_fused_adamw_", "_fused_sgd_")


class Killed(Exception):  # noqa: N818
    """What a SIGKILL would have done."""


class Words:
    """Words of a ledger, at one of which its process is killed: before it is written, or right after."""

    def __init__(self, words: Any, lives: Callable[[], bool], after: bool) -> None:
        self.words, self.lives, self.after = words, lives, after

    def __getitem__(self, place: int) -> Any:
        return self.words[place]

    def __setitem__(self, place: int, value: Any) -> None:
        lives = self.lives()
        if lives or self.after:
            self.words[place] = value
        if not lives:
            raise Killed


def kill_at_word(state: StageState, number: int, after: bool = False) -> Callable[[], int]:
    """The process is killed at that word, counted from 0. The answer counts words so far."""
    written = itertools.count()
    last = -1

    def lives() -> bool:
        nonlocal last
        last = next(written)
        return last != number

    ledger = state._ledger
    ledger.counts, ledger.measures = Words(ledger.counts, lives, after), Words(ledger.measures, lives, after)  # type: ignore[assignment]
    return lambda: last + 1


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("state")
    yield descriptor
    os.close(descriptor)


def attach(memory: int | None, config: Any = None, identity: str = "job", threads: int = 1) -> StageState:
    """What a worker does that has just been started."""
    config = config or small_config()
    stage = Stage(config, HEADS, range(config.num_hidden_layers), seed=3)
    return StageState(stage, torch.device("cpu"), memory, identity, threads)


def attach_adapters(memory: int | None) -> StageState:
    """A stage that trains so little that all of it changes at once."""
    stage = Stage(ADAPTED, HEADS, range(1, 2), seed=3, lora=ADAPTERS.lora, source=ADAPTERS.source)
    freeze(stage, ADAPTERS, torch.device("cpu"))
    return StageState(stage, torch.device("cpu"), memory)


def attach_small(memory: int | None) -> StageState:
    return attach(memory, SMALL)


def fresh(memory: int | None, threads: int = 1) -> StageState:
    stage = Stage(small_config(), HEADS, range(3), seed=3)
    state = StageState(stage, torch.device("cpu"), memory, "job", threads)
    initialise(stage, state, RANDOM)
    return state


def give_gradients(state: StageState, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for slot in state.slots:
        slot.grad.copy_(torch.randn(slot.grad.shape, generator=generator))
    state.prepare()


def train(state: StageState, optimizer: Optimizer, steps: int) -> None:
    while state.step < steps:
        give_gradients(state, state.step)
        state.commit(COEFFICIENT, RATE)
        optimizer.apply()


def draw(state: StageState) -> StageState:
    """First weights, of no model."""
    generator = torch.Generator().manual_seed(3)
    for slot in state.slots:
        slot.weight.copy_(torch.randn(slot.weight.shape, generator=generator))
    state.fill(0)
    return state


def undisturbed(steps: int, started: Callable[[int | None], StageState] = fresh, training: Training = TRAINING) -> torch.Tensor:
    state = started(None)
    train(state, optimizer_of(state, training), steps)
    return state.saved.clone()


def test_a_new_memory_holds_nothing(memory: int) -> None:
    state = attach(memory)
    assert state.holding is None
    assert state.committed is None
    assert state.best == Best()
    assert state.evaluated == -1
    AdamW(state, TRAINING).apply()
    assert state.step == -1


def test_what_a_process_left_is_there_for_the_next(memory: int) -> None:
    first = fresh(memory)
    train(first, AdamW(first, TRAINING), 2)
    first.best, first.seconds, first.evaluated = Best(2, 0.75), 12.5, 2
    give_gradients(first, 2)
    second = attach(memory)
    assert second.holding == Holding(step=2, prepared=True)
    assert (second.best, second.seconds, second.evaluated) == (Best(2, 0.75), 12.5, 2)
    assert second.committed == (2, COEFFICIENT, RATE)
    assert torch.equal(second.block, first.block)
    assert second.block.data_ptr() != first.block.data_ptr()


@pytest.mark.parametrize(
    "other",
    [{"identity": "another job"}, {"config": small_config(vocab_size=2999)}, {"threads": 2}],
    ids=["identity", "shapes", "threads"],
)
def test_the_memory_of_another_job_or_stage_is_not_taken(memory: int, other: dict[str, Any]) -> None:
    first = fresh(memory)
    first.best = Best(1, 0.5)
    second = attach(memory, **other)
    assert second.holding is None
    assert second.best == Best()
    assert not second.block.any()


def test_a_state_that_is_being_filled_is_nobody_s(memory: int) -> None:
    state = fresh(memory)
    train(state, AdamW(state, TRAINING), 1)
    state.fill(-1)
    assert attach(memory).holding is None
    state.fill(7)
    assert attach(memory).holding == Holding(step=7)


def test_gradients_that_were_forgotten_are_not_prepared(memory: int) -> None:
    state = fresh(memory)
    give_gradients(state, 0)
    state.forget_gradients()
    assert attach(memory).holding == Holding(step=0)
    assert not any(slot.grad.any() for slot in state.slots)


@pytest.mark.parametrize(("training", "threads"), [(TRAINING, 1), (TRAINING, 2), (SGD, 1)], ids=["AdamW", "AdamW-2", "SGD"])
def test_killed_in_every_call_of_an_update(
    memory: int, monkeypatch: pytest.MonkeyPatch, training: Training, threads: int
) -> None:
    """The call that is cut off has spoilt what it was to change; the next process goes on to the same bits."""
    expected = undisturbed(3, training=training)
    real = {name: getattr(torch, name) for name in CALLS}
    calls = 0
    fatal = -1

    def instead(name: str) -> Any:
        def call(first: Any, *others: Any, **options: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == fatal:
                moments = [each for part in others[1:3] for each in part] if "fused" in name else []
                changed = [*first, *moments]
                for tensor in changed[: 1 + len(changed) // 2]:
                    tensor.view(-1)[: 1 + tensor.numel() // 2] = float("nan")
                raise Killed
            real[name](first, *others, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(torch, name, instead(name))
    state = fresh(memory, threads)
    train(state, optimizer_of(state, training), 1)
    start, of_one_step = state.block.clone(), calls
    assert of_one_step >= 16
    for number in range(1, of_one_step + 1):
        state.fill(-1)
        state.block.copy_(start)
        state.fill(1)
        calls, fatal = 0, number
        with pytest.raises(Killed):
            train(state, optimizer_of(state, training), 3)
        fatal = -1
        successor = attach(memory, threads=threads)
        assert successor.holding == Holding(step=2)
        optimizer = optimizer_of(successor, training)
        optimizer.apply()
        assert successor.step == 2
        assert not any(slot.grad.any() for slot in successor.slots)
        train(successor, optimizer, 3)
        assert torch.equal(successor.saved, expected), f"killed in call {number}"


@pytest.mark.parametrize(("made", "groups", "after"), [(attach_small, 11, False), (attach_adapters, 1, True)])
def test_killed_at_every_word_of_a_step(memory: int, made: Callable[[int | None], StageState], groups: int, after: bool) -> None:
    """The ledger of the step before is still there: what it says of groups that were done and undone must be gone before a commit counts."""
    expected = undisturbed(3, lambda memory: draw(made(memory)))
    start = draw(made(memory))
    train(start, AdamW(start, TRAINING), 1)
    before = os.pread(memory, os.fstat(memory).st_size, 0)
    assert start.done == len(start.groups) == groups
    for number in itertools.count():
        os.pwrite(memory, before, 0)
        state = made(memory)
        written = kill_at_word(state, number, after)
        try:
            train(state, AdamW(state, TRAINING), 2)
        except Killed:
            pass
        else:
            break
        successor = made(memory)
        optimizer = AdamW(successor, TRAINING)
        optimizer.apply()
        if successor.step == 1:  # not committed yet: what it has of gradients is worth nothing
            give_gradients(successor, 1)
        train(successor, optimizer, 3)
        assert torch.equal(successor.saved, expected), f"killed at word {number}"
    assert written() == number > 2 * groups


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_word_of_steps_whose_gradients_overflow(memory: int, after: bool) -> None:
    """The scale is that of the step whatever was cut off, an update that is left out counts as none, and it halves once."""

    def go_on(state: StageState, optimizer: Optimizer) -> None:
        while state.step < 5:
            if state.step + 1 in (2, 4):
                state.gradient.fill_(float("inf"))
                state.prepare()
                state.commit(SKIP, RATE)
            else:
                give_gradients(state, state.step)
                state.commit(COEFFICIENT, RATE)
            optimizer.apply()

    def begin(memory: int | None) -> StageState:
        state = draw(attach_small(memory))
        state.loss_scale = LossScale(0)
        return state

    plain = begin(None)
    go_on(plain, AdamW(plain, TRAINING))
    three = draw(attach_small(None))
    optimizer = AdamW(three, TRAINING)
    for update, step in enumerate((0, 2, 4)):
        give_gradients(three, step)
        three.fill(update)
        three.commit(COEFFICIENT, RATE)
        optimizer.apply()
    assert torch.equal(plain.saved, three.saved)
    assert plain.loss_scale == LossScale(5, exponent=14, good=1, skipped=2)
    begin(memory)
    before = os.pread(memory, os.fstat(memory).st_size, 0)
    for number in itertools.count():
        os.pwrite(memory, before, 0)
        state = attach_small(memory)
        kill_at_word(state, number, after)
        try:
            go_on(state, AdamW(state, TRAINING))
        except Killed:
            pass
        else:
            break
        successor = attach_small(memory)
        optimizer = AdamW(successor, TRAINING)
        optimizer.apply()
        assert successor.loss_scale is not None
        assert successor.loss_scale.step == successor.step
        go_on(successor, optimizer)
        assert torch.equal(successor.saved, plain.saved), f"killed at word {number}"
        assert successor.loss_scale == plain.loss_scale


@pytest.mark.parametrize("committed", [None, (2, 0.5, 0.25)])
def test_killed_at_every_word_while_another_state_is_taken(memory: int, committed: tuple[int, float, float] | None) -> None:
    """No update is made of what is not this step's: neither of the old state, while the new one comes, nor of that."""
    start = draw(attach_small(memory))
    train(start, AdamW(start, TRAINING), 3)
    before, old = os.pread(memory, os.fstat(memory).st_size, 0), start.saved.clone()
    seen = set()
    for number in itertools.count():
        os.pwrite(memory, before, 0)
        state = attach_small(memory)
        kill_at_word(state, number)
        killed = False
        try:
            state.fill(-1)
            state.saved.fill_(2.0)
            state.fill(2, committed)
        except Killed:
            killed = True
        successor = attach_small(memory)
        left = successor.saved.clone()
        AdamW(successor, TRAINING).apply()
        seen.add(successor.step)
        assert torch.equal(successor.saved, left), f"killed at word {number}"
        if successor.step == 3:
            assert torch.equal(left, old)
        if successor.step == 2:
            assert bool((left == 2.0).all())
            assert successor.holding == Holding(step=2, prepared=False)
            assert successor.committed in (None, committed)
        if not killed:
            break
    assert successor.committed == committed
    assert seen == {3, -1, 2}


@pytest.mark.parametrize("steps", [25, pytest.param(150, marks=pytest.mark.slow)])
def test_killed_at_any_moment(memory: int, steps: int) -> None:
    """Real processes and real SIGKILLs."""
    state = fresh(memory)
    choose = random.Random(5)
    kills = 0
    while state.step < steps:
        child = os.fork()
        if child == 0:
            try:
                successor = attach(memory)
                optimizer = AdamW(successor, TRAINING)
                optimizer.apply()
                if successor.holding == Holding(step=successor.step, prepared=True):
                    successor.forget_gradients()
                train(successor, optimizer, steps)
            finally:
                os._exit(0)
        before = state.step
        while state.step < min(before + choose.randrange(1, 12), steps):
            assert os.waitpid(child, os.WNOHANG) == (0, 0) or state.step == steps
        if state.step < steps:
            os.kill(child, signal.SIGKILL)
            kills += 1
            os.waitpid(child, 0)
    assert kills >= 5
    assert torch.equal(state.saved, undisturbed(steps))


@pytest.mark.parametrize("after", [False, True])
def test_of_a_text_that_a_killed_process_wrote_all_is_there_or_nothing(memory: int, after: bool) -> None:
    for last in range(3):
        ledger, left = Ledger(64, "layout", memory), itertools.count(last, -1)
        ledger.text = "the one before"
        ledger.counts = Words(ledger.counts, lambda left=left: next(left) > 0, after)
        try:
            ledger.text = "another\u2026"
        except Killed:
            assert last < 2
        assert Ledger(64, "layout", memory).text in (["another\u2026", None] if last or after else ["the one before"])
    assert Ledger(64, "layout", memory).text == "another\u2026"
    ledger = Ledger(64, "layout", memory)
    for none in ("x" * HEADER, "", None):
        ledger.text = "before"
        ledger.text = none
        assert ledger.text is None


def test_memory_that_is_made_before_is_not_made_while_it_is_written(memory: int) -> None:
    ledger = Ledger(64 << 20, "layout", memory)
    ledger.counts[Count.STEP] = 7
    ledger.populate()
    assert ledger.counts[Count.STEP] == 7
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.frombuffer(ledger.memory, dtype=torch.uint8).fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < (64 << 20) // mmap.PAGESIZE // 10
