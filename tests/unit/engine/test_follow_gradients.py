"""Gradients travel to a follower as they become final, and are taken for a step's when they are all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmj_api.protocol import Holding
from lmj_trainer.state.finals import Finals
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.transport.feed import Done
from lmj_trainer.transport.packing import Packed
from lmj_trainer.transport.parts import ROW, Gradients, Part, Prepared

from .pair import SECONDS, Pair, eventually, source_model

pytestmark = pytest.mark.integration


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when gradients were packed: each span has to wait for the one before."""
    monkeypatch.setattr("lmj_trainer.follow.stream.WINDOW", 1)
    monkeypatch.setattr("lmj_trainer.follow.source._PART", ROW)
    of, done = Gradients.packed, threading.Event()

    def packed(part: Gradients) -> Gradients:
        try:
            return of(part)
        finally:
            done.set()

    monkeypatch.setattr(Gradients, "packed", packed)
    return done


def test_gradients_that_were_not_committed_are_sent_again(pair: Pair) -> None:
    pair.follow()
    pair.prepare()
    pair.states[0].forget_gradients()
    pair.source.forgotten()
    pair.step()
    assert pair.stop() == Holding(step=2)
    pair.assert_equal()


def test_gradients_travel_as_they_become_final(pair: Pair) -> None:
    pair.follow()
    pair.source.boundary()
    state, there = pair.states[0], pair.states[1].slots[-1]
    pair.gradients()
    assert pair.source.follows
    pair.final()
    eventually(lambda: torch.equal(there.grad, state.slots[-1].grad))
    assert torch.equal(there.grad, state.slots[-1].grad)
    assert pair.states[1].holding == Holding(step=1), "they are not all, until it is told"
    state.prepare()
    pair.source.prepared()
    pair.commit()
    pair.step()
    assert pair.stop() == Holding(step=3)
    pair.assert_equal()


def test_gradients_that_travelled_and_were_forgotten_are_sent_again(pair: Pair) -> None:
    pair.follow()
    pair.source.boundary()
    state = pair.states[0]
    pair.gradients()
    for slot in reversed(state.slots[2:]):
        pair.source.final(slot.weight)
    # The view breaks here: the step is done again, and this time its gradients are others.
    state.forget_gradients()
    pair.source.forgotten()
    pair.source.boundary()
    state.slots[3].grad.fill_(1.0)
    state.prepare()
    pair.source.prepared()
    pair.commit()
    assert pair.stop() == Holding(step=2)
    pair.assert_equal()


def test_gradients_that_were_not_all_taken_are_not_told_to_be_complete(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent from the block: what goes out after the follower was let go may be anything."""
    pair.follow()
    tell, bodies = pair.transports[0].tell, []

    def lossy(address: str, part: Part, done: Done) -> None:
        bodies.append(part.body)
        if not isinstance(part.body, Gradients):
            tell(address, part, done)

    monkeypatch.setattr(pair.transports[0], "tell", lossy)
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    pair.step()
    assert pair.lost
    assert any(isinstance(body, Gradients) for body in bodies)
    assert not any(isinstance(body, Prepared) for body in bodies)


def test_gradients_of_a_step_that_is_done_again_are_not_taken_for_all(pair: Pair) -> None:
    pair.follow()
    pair.prepare()
    assert pair.states[1].holding == Holding(step=1, prepared=True)
    # The view breaks, and in the next one the step is done again as far as a first gradient.
    pair.source.forgotten()
    pair.states[0].forget_gradients()
    pair.source.boundary()
    pair.gradients()
    pair.final()
    eventually(lambda: pair.states[1].holding != Holding(step=1, prepared=True))
    assert pair.stop() == Holding(step=1), "what is there is of two tries"


@pytest.mark.parametrize("behind", [0, 1])
def test_gradients_are_packed_while_the_network_is_waited_for(
    pair: Pair, packs: threading.Event, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """``behind``: parts that wait for the follower itself, which then need not have more to do."""
    bodies, tell = [], pair.transports[0].tell
    network: queue.SimpleQueue[tuple[str, Part, Done]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            address, part, done = network.get()
            if isinstance(part.body, Gradients) and not any(isinstance(body, Gradients) for body in bodies):
                # The first is there when the next is packed, or would be.
                packs.wait(SECONDS if behind == 0 else 0.2)
            bodies.append(part.body)
            tell(address, part, answered(done))

    def answered(done: Done) -> Done:
        return lambda problem, answer: done(problem, max(behind, answer))

    pair.follow()
    packs.clear()
    monkeypatch.setattr(pair.transports[0], "tell", lambda *args: network.put(args))
    threading.Thread(target=deliver, daemon=True).start()
    stream = pair.source._stream
    assert stream is not None
    stream.waiting = -1
    pair.source.abandoned()  # anything that is answered
    eventually(lambda: stream.waiting == behind)
    pair.step()
    pair.step()
    assert pair.stop() == Holding(step=3)
    pair.assert_equal()
    sent = [body.values for body in bodies if isinstance(body, Gradients)]
    assert len(sent) > 10
    assert any(isinstance(values, Packed) for values in sent) == (behind == 0)


def test_gradients_that_were_packed_and_forgotten_are_not_sent(
    pair: Pair, packs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for room is a copy, of a try that is over."""
    tell, held = pair.transports[0].tell, queue.SimpleQueue[Callable[[], None]]()

    def slow(address: str, part: Part, done: Done) -> None:
        assert isinstance(part.body, Gradients)
        assert isinstance(part.body.values, torch.Tensor)
        there = replace(part, body=replace(part.body, values=part.body.values.clone()))  # as a network that has read it
        held.put(lambda: tell(address, there, done))

    pair.follow()
    packs.clear()
    monkeypatch.setattr(pair.transports[0], "tell", slow)
    state = pair.states[0]
    pair.source.boundary()
    pair.gradients()
    pair.final()
    assert packs.wait(SECONDS), "the second waits for the first"
    monkeypatch.setattr(pair.transports[0], "tell", tell)
    with pair.source._turn:  # the next try comes before the thread that sends has seen that this one is over
        pair.source.forgotten()
        state.forget_gradients()
        for slot in state.slots:
            slot.grad.fill_(1.0)
        pair.final()
    held.get(timeout=SECONDS)()
    assert held.empty()
    state.prepare()
    pair.source.prepared()
    pair.commit()
    assert pair.stop() == Holding(step=2)
    pair.assert_equal()


def test_a_follower_says_how_many_parts_wait_behind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.follow()
    taken, goes = threading.Event(), threading.Event()
    write, answers = Gradients.write, queue.SimpleQueue[tuple[str | None, int]]()

    def slow(part: Gradients, gradients: torch.Tensor) -> None:
        taken.set()
        assert goes.wait(SECONDS)
        write(part, gradients)

    monkeypatch.setattr(Gradients, "write", slow)
    stream = pair.source._stream
    assert stream is not None
    for start in range(0, 3 * ROW, ROW):
        part = Part(stream.number, next(stream.parts), Gradients.of(2, start, torch.randn(ROW)))
        pair.transports[0].tell("follower", part, lambda *answer: answers.put(answer))
    assert taken.wait(SECONDS)
    assert pair.transports[1].feed.waiting == 2
    goes.set()
    assert [answers.get(timeout=SECONDS) for _ in range(3)] == [(None, 2), (None, 1), (None, 0)]


@pytest.mark.parametrize("rows", [[], [0], [3, 17, 40], list(range(64))])
def test_a_span_of_few_words_is_sent_as_rows(rows: list[int]) -> None:
    span = torch.zeros(64 * ROW)
    for row in rows:
        span[row * ROW : (row + 1) * ROW].normal_()
        span[row * ROW + 1] = -0.0
    sent = Gradients.of(5, ROW, span)
    assert (sent.rows is None) == (len(rows) == 64)
    assert isinstance(sent.values, torch.Tensor)
    assert sent.values.numel() == len(rows) * ROW
    there = torch.full((66 * ROW,), 7.0)
    sent.write(there)
    assert torch.equal(there[ROW:-ROW].view(torch.int32), span.view(torch.int32))
    assert there[:ROW].eq(7).all()
    assert there[-ROW:].eq(7).all()


def test_each_span_is_given_out_once_when_all_of_it_is_final(
    make_state: Callable[..., Any], make_config: Callable[..., Any]
) -> None:
    state: StageState = make_state(make_config(), range(1, 3), model=source_model())[1]
    end = state.groups[len(state.groups) // 2].span.stop
    finals = Finals(state, end, 1 << 10)
    missing = {
        i for slot in state.slots for i in range(slot.weight.storage_offset(), slot.weight.storage_offset() + slot.weight.numel())
    }
    given: list[slice] = []
    for slot in reversed(state.slots):
        start, count = slot.weight.storage_offset(), slot.weight.numel()
        missing -= set(range(start, start + count))
        spans = finals.final(start, count)
        assert not any(missing & set(range(span.start, span.stop)) for span in spans)
        given += spans
    assert finals.rest() == []
    assert sorted((span.start, span.stop) for span in given) == [(i, min(i + 1024, end)) for i in range(0, end, 1024)]
