"""A follower has what its source has, to the bit, whenever it began and wherever it ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lmj_api.protocol import Holding
from lmj_api.spec import Lora, Model, Scratch
from lmj_trainer.follow import copy_pace
from lmj_trainer.follow import follower as follower_module
from lmj_trainer.follow import source as source_module
from lmj_trainer.follow.source import Source
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.transport.feed import Done
from lmj_trainer.transport.parts import Gradients, Part, State

from .pair import SECONDS, Pair

pytestmark = pytest.mark.integration


def test_level_from_wherever_it_began(pair: Pair) -> None:
    for _ in range(3):
        pair.step()
    pair.source.follow("follower")
    for _ in range(40):
        pair.step()
        if pair.line.in_sync:
            break
    pair.line.wait(lambda: pair.line.in_sync)
    in_sync = pair.line.copied[-1]
    assert (in_sync.done, in_sync.size, in_sync.step) == (
        pair.states[0].saved.nbytes,
        pair.states[0].saved.nbytes,
        in_sync.in_sync_step,
    )
    assert pair.line.told[-1][1].endswith(f"digest {in_sync.digest}, as its source's")
    pair.step()
    assert pair.stop() == Holding(step=pair.states[0].step)
    pair.assert_equal()
    assert not pair.lost
    end = pair.line.copied[-1]
    assert (end.step, end.in_sync_step, end.digest) == (pair.states[0].step, in_sync.in_sync_step, in_sync.digest)
    assert end.gradients > in_sync.gradients


def test_a_follower_tells_now_and_then_at_which_step_it_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "_TELL_SECONDS", -1.0)
    pair.follow()
    pair.step()
    step = pair.states[0].step
    pair.line.wait(lambda: pair.line.told[-1][1:] == (f"is at step {step}", Holding(step=step)))


def test_adapters_are_followed_without_the_frozen_weights(make_config: Callable[..., Any]) -> None:
    model = Model(scratch=Scratch(), lora=Lora())

    def make(config: Any, layers: range, model: Model | None = model) -> tuple[Stage, StageState]:
        stage = Stage(config, HEADS, layers, seed=3, lora=Lora())
        freeze(stage, Model(scratch=Scratch()), torch.device("cpu"))
        state = StageState(stage, torch.device("cpu"))
        if model is not None:
            initialise(stage, state, model)
        return stage, state

    pair = Pair(make, make_config())
    try:
        pair.source.follow("follower")
        pair.step()
        pair.line.wait(lambda: pair.line.in_sync)
        pair.step()
        assert pair.stop() == Holding(step=2)
        pair.assert_equal()
        assert pair.states[0].size < 10_000
    finally:
        pair.close()


def test_who_is_level_knows_how_the_step_was_committed(pair: Pair) -> None:
    """It may be the only one: its source dies, and the other ranks have not heard of the commit."""
    pair.step()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.stop()
    assert pair.states[0].committed == (1, 0.5, 1e-3)
    assert pair.states[1].committed == pair.states[0].committed
    before = pair.states[1].saved.clone()
    pair.optimizers[1].apply()
    assert torch.equal(pair.states[1].saved, before)


def test_who_has_followed_before_is_level_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.follow()
    pair.source.follow(None)
    pair.source.boundary()
    pair.stop()
    pair.line.told.clear()
    monkeypatch.setattr(source_module, "State", None)  # nothing is copied
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_a_source_sees_how_fast_its_network_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.follow.stream.MEASURED_BYTES", 1)
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    copied = pair.source._streams["follower"].rate
    assert copied > 0
    pair.step()
    assert pair.source._streams["follower"].rate != copied, "gradients count too"


def test_a_hand_over_says_what_it_took(pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("lmj_trainer.follow.stream.SLOW_RATE", 0.0)  # nothing is packed
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.step()
    pair.source.boundary()
    with caplog.at_level("INFO"):
        pair.source.hand_over()
    size = pair.states[0].size
    assert f"handed over: sent {3 * 4 * size} bytes of state and {4 * size} of gradients" in caplog.text
    pair.line.wait(lambda: pair.line.over)
    pair.assert_equal()


def test_who_takes_over_says_so_before_its_last_update(pair: Pair) -> None:
    """The next view is made meanwhile. Its source makes none: its cores are the others'."""
    pair.follow()
    pair.step()
    step = pair.states[0].step + 1
    pair.prepare()
    pair.commit(last=True)
    pair.source.hand_over()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][1:] == (f"it takes over at step {step}", Holding(step=step))
    assert [state.step for state in pair.states] == [step - 1] * 2
    assert [state.reached for state in pair.states] == [step] * 2
    for optimizer in pair.optimizers:
        optimizer.apply()
    assert [state.step for state in pair.states] == [step] * 2
    pair.assert_equal()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_source_that_stays_after_a_last_commit_is_followed_on(pair: Pair, prepared: bool) -> None:
    pair.follow()
    pair.prepare()
    pair.commit(last=True)
    pair.update()
    step = pair.states[0].step
    if prepared:
        pair.prepare()
        assert pair.stop() == Holding(step=step, prepared=True)
    else:
        pair.step()
        assert pair.stop() == Holding(step=step + 1)
    pair.assert_equal()


def test_who_is_not_level_takes_nothing_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    goes, digest = threading.Event(), pair.states[0].digest

    def late(runs: list[slice]) -> str:
        assert goes.wait(SECONDS)
        return digest(runs)

    monkeypatch.setattr(pair.states[0], "digest", late)
    pair.source.follow("follower")
    pair.source.boundary()
    pair.source.hand_over()
    goes.set()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_a_state_that_is_never_still_is_read_while_training_waits(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_READS", 2)
    reads, digest = [], pair.states[0].digest

    def between_steps(runs: list[slice]) -> str:
        reads.append(pair.states[0].step)
        found = digest(runs)
        if len(reads) <= 2:
            pair.step()
        return found

    monkeypatch.setattr(pair.states[0], "digest", between_steps)
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    assert reads == [0, 1, 2]
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_another_state_is_copied_anew(pair: Pair) -> None:
    pair.follow()
    pair.source.restart()
    pair.line.told.clear()
    pair.states[0].fill(0)
    pair.states[0].saved.zero_()
    pair.step()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_memory_of_another_job_is_refused(pair: Pair) -> None:
    pair.states[1].identity += " of another job"
    pair.source.follow("follower")
    pair.source.boundary()
    pair.await_refusal()
    assert pair.lost == ["the follower's memory has another layout: it is not of the same job, stage or version"]


def test_the_copy_keeps_to_its_bandwidth(pair: Pair) -> None:
    size = pair.states[0].saved.nbytes
    # A third of a second for all of it.
    pair.source = Source(pair.transports[0], pair.states[0], pair.let_go, SECONDS, SECONDS, bandwidth_mbps=3 * size * 8e-6)
    begin = time.monotonic()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    assert time.monotonic() - begin > 0.3


@pytest.mark.parametrize(("rate", "most", "least"), [(3.0, 5.0, 0.3), (0.01, 0.3, 0.27)])
def test_a_copy_leaves_training_its_memory(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rate: float, most: float, least: float
) -> None:
    """``rate``: states a second. One that would take long is hurried."""
    monkeypatch.setattr(copy_pace, "_MOST_RATE", rate * pair.states[0].saved.nbytes)
    monkeypatch.setattr(copy_pace, "_MOST_SECONDS", most)
    begin = time.monotonic()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    assert time.monotonic() - begin > least


def test_a_gentle_copy_goes_as_fast_as_it_can_while_nothing_trains(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a step all of it would take longer than anybody waits here. In parts, as a large state is."""
    monkeypatch.setattr(source_module, "_COPY_PART", 1)
    monkeypatch.setattr(copy_pace, "_LEAST_RATE", 0.0)
    monkeypatch.setattr(copy_pace, "_BOUND_SECONDS", 1000 * SECONDS)
    pair.source.follow("follower", gentle=True)
    pair.source.boundary()
    pair.line.wait(lambda: bool(pair.line.told))
    time.sleep(0.5)
    assert not pair.line.in_sync
    pair.source.stepped(1.0)
    pair.line.wait(lambda: pair.line.in_sync)


def test_a_gentle_copy_need_not_wait_for_a_step_that_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_COPY_PART", 1)
    monkeypatch.setattr(copy_pace, "_LEAST_RATE", 0.0)
    monkeypatch.setattr(copy_pace, "_BOUND_SECONDS", 1000 * SECONDS)
    pair.source.follow("follower", gentle=True)
    pair.source.boundary()
    pair.line.wait(lambda: bool(pair.line.told))
    pair.source.abandoned()
    pair.line.wait(lambda: pair.line.in_sync)


def test_a_gentle_copy_goes_by_the_steps_of_its_source(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a tenth of a second: a fourth of the state in each. It has the same bits."""
    monkeypatch.setattr(source_module, "_COPY_PART", 1)
    monkeypatch.setattr(copy_pace, "_LEAST_RATE", 0.0)
    monkeypatch.setattr(copy_pace, "_BOUND_SECONDS", 1000 * SECONDS)
    pair.source = Source(pair.transports[0], pair.states[0], pair.let_go, SECONDS, SECONDS, usual=lambda: 0.1)
    pair.source.follow("follower", gentle=True)
    begin = time.monotonic()
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.in_sync)
    assert time.monotonic() - begin > 0.3
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_a_state_that_differs_is_found_out(pair: Pair) -> None:
    pair.follow()
    pair.source.follow(None)
    pair.source.boundary()
    pair.stop()
    # Of the same step, as it says; but a bit of it is not what it was.
    pair.states[1].saved[7] += 1
    pair.line.told.clear()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.over)
    assert "is not that of its source" in pair.line.told[-1][1]
    assert pair.line.told[-1][2] is None
    pair.await_refusal()
    assert "is not that of its source" in pair.lost[0]


def test_gradients_that_are_out_when_the_follower_gets_level_are_not_forgotten(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.follow()
    pair.source.follow(None)
    pair.source.boundary()
    pair.stop()
    pair.line.told.clear()
    reading, go_on = threading.Event(), threading.Event()
    digest = pair.states[0].digest

    def slow(runs: list[slice]) -> str:
        value = digest(runs)
        reading.set()
        assert go_on.wait(SECONDS)
        return value

    monkeypatch.setattr(pair.states[0], "digest", slow)
    pair.source.follow("follower")
    pair.source.boundary()
    assert reading.wait(SECONDS)
    # The state is read beside training, which has the gradients of the next step by now.
    pair.gradients()
    pair.states[0].prepare()
    pair.source.prepared()
    go_on.set()
    with pair.line.changed:
        assert not pair.line.changed.wait_for(lambda: pair.line.in_sync, 0.5), "its gradients would be gone"
    pair.commit()
    pair.line.wait(lambda: pair.line.in_sync)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_no_part_that_is_sent_keeps_the_compute_thread_waiting(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """That tells of each gradient that is final, meanwhile. It takes RPC some time to send one."""
    tell, sent, kept = pair.transports[0].tell, list[type](), list[type]()

    def slow(address: str, part: Part, done: Done) -> None:
        if isinstance(part.body, State | Gradients):
            sent.append(type(part.body))
            other = threading.Thread(target=lambda: pair.source.in_sync, daemon=True)
            other.start()
            other.join(SECONDS / 4)
            if other.is_alive():
                kept.append(type(part.body))
        tell(address, part, done)

    monkeypatch.setattr(pair.transports[0], "tell", slow)
    pair.follow()
    pair.step()
    assert set(sent) == {State, Gradients}
    assert kept == []
    pair.stop()
    pair.assert_equal()


def test_the_block_does_not_change_while_it_is_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy may be under way when a view begins whose first work is the update of a step that broke the one before."""
    tell, held, sent = pair.transports[0].tell, queue.SimpleQueue[Callable[[], None]](), threading.Event()

    def slow(address: str, part: Part, done: Done) -> None:
        if isinstance(part.body, State):
            held.put(lambda: tell(address, part, done))
            sent.set()
        else:
            tell(address, part, done)

    state = pair.states[0]
    pair.gradients()
    state.prepare()
    monkeypatch.setattr(pair.transports[0], "tell", slow)
    pair.source.follow("follower")
    pair.source.boundary()
    assert sent.wait(SECONDS)
    before = state.saved.clone()
    thread = threading.Thread(target=pair.commit, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert torch.equal(state.saved, before)
    monkeypatch.setattr(pair.transports[0], "tell", tell)
    while not held.empty():
        held.get()()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert state.step == 1


def test_it_says_which_step_would_be_its_next(pair: Pair) -> None:
    """So that the rows of that are read before it takes over."""
    told: list[int] = []
    pair.follower._expect = told.append
    pair.follow()
    for _ in range(3):
        pair.step()
    assert pair.stop() == Holding(step=pair.states[0].step)
    assert told == list(range(told[0], pair.states[0].step + 1))
    assert len(told) >= 4
