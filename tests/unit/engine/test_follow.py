"""A follower has what its source has, to the bit, whenever it began and wherever it ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lmj_api.protocol import EventKind, Holding
from lmj_api.spec import Lora, Model, Scratch, Training
from lmj_trainer.follow import feed as feed_module
from lmj_trainer.follow import source as source_module
from lmj_trainer.follow.feed import Feed, Offer
from lmj_trainer.follow.finals import Finals
from lmj_trainer.follow.follower import Follower
from lmj_trainer.follow.parts import ROW, Begin, Gradients, Part, Prepared
from lmj_trainer.follow.source import Source
from lmj_trainer.model.stage import Stage
from lmj_trainer.model.weights import freeze, initialise
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.state.stage_state import Best, StageState
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport

SECONDS = 20.0


class Line:
    """The follower's line to its agent."""

    def __init__(self) -> None:
        self.ordered = False
        self.told: list[tuple[EventKind, str, Holding | None]] = []
        self.changed = threading.Condition()

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        with self.changed:
            self.told.append((kind, message, details["holding"]))
            self.changed.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, SECONDS), self.told

    @property
    def over(self) -> bool:
        return bool(self.told) and self.told[-1][0] is EventKind.LOST_PEER

    @property
    def level(self) -> bool:
        return bool(self.told) and self.told[-1][0] is EventKind.FOLLOWING and self.told[-1][2] is not None


class Pair:
    """A source that trains on made-up gradients, and its follower in a thread."""

    def __init__(self, make_state: Callable[..., Any], config: Any) -> None:
        self.network: dict[str, MemoryTransport] = {}
        self.transports = [MemoryTransport(self.network, name) for name in ("source", "follower")]
        self.states: list[StageState] = [make_state(config, range(1, 3), model=m)[1] for m in (source_model(), None)]
        self.optimizers = [AdamW(state, Training()) for state in self.states]
        self.lost: list[str] = []
        self.first = False
        """The source is rank 0: its follower is to know of a commit before anybody else."""
        self.states[0].fill(0)
        self.source = Source(self.transports[0], self.states[0], self.lost.append, SECONDS)
        self.line = Line()
        self.follower = Follower(self.transports[1].feed, self.states[1], self.optimizers[1], self.transports[1], self.line)  # type: ignore[arg-type]
        self.offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self.transports[1].feed.listen(self.offers.put)
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        while (offer := self.offers.get()) is not None:
            self.follower.run(offer)

    def close(self) -> None:
        self.transports[1].feed.stop("the test is over")
        self.offers.put(None)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def gradients(self) -> None:
        """Of the next step."""
        state = self.states[0]
        torch.manual_seed(state.step)
        for slot in state.slots:
            slot.grad.normal_()

    def prepare(self) -> None:
        self.source.boundary()
        self.gradients()
        self.states[0].prepare()
        self.source.prepared()

    def commit(self) -> None:
        state = self.states[0]
        state.seconds, state.evaluated, state.best = state.step + 0.5, state.step, Best(state.step, 0.25)
        rate = 1e-3 / (state.step + 1)
        self.source.committed(0.5, rate, f"step {state.step + 1}", first=self.first)
        state.commit(0.5, rate)
        with self.source.changing():
            self.optimizers[0].apply()

    def step(self) -> None:
        self.prepare()
        self.commit()

    def follow(self) -> None:
        """A step, with a follower that is level."""
        self.source.follow("follower")
        self.step()
        self.line.wait(lambda: self.line.level)

    def stop(self) -> Holding | None:
        """End it, as the agent does; what the follower has then."""
        self.transports[1].feed.stop("enough")
        self.line.wait(lambda: self.line.over)
        return self.line.told[-1][2]

    def assert_equal(self) -> None:
        one, two = self.states
        assert one.step == two.step
        assert torch.equal(one.saved, two.saved)
        assert (one.best, one.seconds, one.evaluated) == (two.best, two.seconds, two.evaluated)


def source_model() -> Any:
    from lmj_api.spec import Model

    return Model.model_validate({"scratch": {}})


@pytest.fixture
def pair(make_state: Callable[..., Any], make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    # A copy of many parts, of which few are under way at once, takes several steps.
    monkeypatch.setattr(source_module, "_PART", 1 << 10)
    monkeypatch.setattr(source_module, "_WINDOW", 1 << 14)
    made = Pair(make_state, make_config())
    yield made
    made.close()


def test_level_from_wherever_it_began(pair: Pair) -> None:
    for _ in range(3):
        pair.step()
    pair.source.follow("follower")
    for _ in range(40):
        pair.step()
        if pair.line.level:
            break
    pair.line.wait(lambda: pair.line.level)
    pair.step()
    assert pair.stop() == Holding(step=pair.states[0].step)
    pair.assert_equal()
    assert not pair.lost


def test_adapters_are_followed_without_the_frozen_weights(make_config: Callable[..., Any]) -> None:
    model = Model(scratch=Scratch(), lora=Lora())

    def make(config: Any, layers: range, model: Model | None = model) -> tuple[Stage, StageState]:
        stage = Stage(config, layers, seed=3, lora=Lora())
        freeze(stage, Model(scratch=Scratch()), torch.device("cpu"))
        state = StageState(stage, torch.device("cpu"))
        if model is not None:
            initialise(stage, state, model)
        return stage, state

    pair = Pair(make, make_config())
    try:
        pair.source.follow("follower")
        pair.step()
        pair.line.wait(lambda: pair.line.level)
        pair.step()
        assert pair.stop() == Holding(step=2)
        pair.assert_equal()
        assert pair.states[0].size < 10_000
    finally:
        pair.close()


def test_a_step_is_prepared_at_the_follower_before_it_is_told(pair: Pair) -> None:
    pair.follow()
    pair.step()
    pair.prepare()
    at = pair.states[0].step
    # Here the source dies; another rank knows how the step was committed.
    assert pair.stop() == Holding(step=at, prepared=True)
    pair.commit()
    pair.states[1].commit(0.5, 1e-3 / (at + 1))
    pair.optimizers[1].apply()
    assert torch.equal(pair.states[0].saved, pair.states[1].saved)


def test_gradients_that_were_not_committed_are_sent_again(pair: Pair) -> None:
    pair.follow()
    pair.prepare()
    pair.states[0].forget_gradients()
    pair.source.forgotten()
    pair.step()
    assert pair.stop() == Holding(step=2)
    pair.assert_equal()


def test_who_is_level_knows_how_the_step_was_committed(pair: Pair) -> None:
    """It may be the only one: its source dies, and the other ranks have not heard of the commit."""
    pair.step()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.level)
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
    pair.line.wait(lambda: pair.line.level)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_a_hand_over_says_what_it_took(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.level)
    pair.step()
    pair.source.boundary()
    with caplog.at_level("INFO"):
        pair.source.hand_over()
    size = pair.states[0].size
    assert f"handed over: sent {3 * 4 * size} bytes of state and {4 * size} of gradients" in caplog.text
    pair.line.wait(lambda: pair.line.over)
    pair.assert_equal()


def test_another_state_is_copied_anew(pair: Pair) -> None:
    pair.follow()
    pair.source.restart()
    pair.line.told.clear()
    pair.states[0].fill(0)
    pair.states[0].saved.zero_()
    pair.step()
    pair.line.wait(lambda: pair.line.level)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_training_goes_on_without_a_follower_that_is_gone(pair: Pair) -> None:
    pair.source.follow("nobody")
    pair.step()
    for thread in threading.enumerate():
        if thread.name == "follow":
            thread.join(SECONDS)
    assert pair.lost
    assert pair.lost[0] == "nobody is gone"
    pair.step()
    assert pair.states[0].step == 2


def test_training_goes_on_without_a_follower_that_does_not_take(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.follow()
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    stuck = threading.Event()
    monkeypatch.setattr(pair.follower, "_take", lambda body: stuck.wait(SECONDS))
    pair.step()
    assert pair.lost == ["it did not take the gradients of step 2 within 0.2 s"]
    stuck.set()
    pair.step()
    assert pair.states[0].step == 3


def test_a_follower_that_was_let_go_follows_no_more(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives: what it has gets older with every step, and nobody may take it for level."""
    pair.follow()
    take, stuck = pair.follower._take, threading.Event()
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    monkeypatch.setattr(pair.follower, "_take", lambda body: (stuck.wait(SECONDS), take(body)))
    pair.step()
    assert pair.lost
    stuck.set()
    pair.step()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][2] == Holding(step=1), "it did not get all gradients"


def test_the_follower_of_rank_0_knows_of_a_commit_before_anybody_else(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that it has taken it: nobody waits for that."""
    pair.follow()
    pair.prepare()
    go_on, apply = threading.Event(), pair.optimizers[1].apply
    monkeypatch.setattr(pair.optimizers[1], "apply", lambda: (go_on.wait(SECONDS), apply()))
    pair.source.committed(0.5, 1e-3, "what is recorded", first=True)
    assert pair.states[1].committed == (2, 0.5, 1e-3)
    assert pair.states[1].line == "what is recorded"
    assert pair.states[1].holding == Holding(step=1, prepared=True)
    go_on.set()
    pair.transports[1].feed.lose("its source is gone")
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][2] == Holding(step=2)


def test_training_waits_for_a_commit_to_be_taken_only_so_long(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.first = True
    pair.follow()
    pair.prepare()
    stuck, take = threading.Event(), pair.follower._take
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    monkeypatch.setattr(pair.follower, "_take", lambda body: (stuck.wait(SECONDS), take(body)))
    pair.commit()
    assert pair.lost == ["it did not take the commit of step 2 within 0.2 s"]
    stuck.set()


def test_a_follower_may_take_its_time_to_begin(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does once what a step does; training does not wait for it meanwhile."""
    monkeypatch.setattr(pair.source, "_patience", 0.05)
    begin, rehearse = threading.Event(), pair.follower._rehearse
    monkeypatch.setattr(pair.follower, "_rehearse", lambda: (begin.wait(SECONDS), rehearse()))
    pair.source.follow("follower")
    for _ in range(3):
        pair.step()
    time.sleep(0.1)  # more than its patience
    monkeypatch.setattr(pair.source, "_patience", SECONDS)
    begin.set()
    pair.line.wait(lambda: pair.line.level)
    assert not pair.lost
    pair.step()
    assert pair.stop() == Holding(step=4)
    pair.assert_equal()


def test_a_follower_that_does_not_begin_is_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_BEGIN_SECONDS", 0.05)
    begin = threading.Event()
    monkeypatch.setattr(pair.follower, "_rehearse", lambda: begin.wait(SECONDS))
    pair.source.follow("follower")
    pair.step()
    for thread in threading.enumerate():
        if thread.name == "follow":
            thread.join(SECONDS)
    begin.set()
    assert pair.lost == ["it did not answer within 0.05 s"]


def test_a_follower_that_is_prepared_does_not_leave_without_the_commit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PROMISE_SECONDS", SECONDS)
    pair.follow()
    pair.prepare()
    pair.transports[1].feed.stop("a member of the view is lost")
    assert not pair.line.over
    pair.commit()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][1:] == ("a member of the view is lost", Holding(step=2))
    pair.assert_equal()


@pytest.mark.parametrize("how", ["it is lost", "too late"])
def test_nobody_waits_long_for_a_commit_of_a_source_that_is_gone(pair: Pair, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(feed_module, "PROMISE_SECONDS", SECONDS if how == "it is lost" else 0.05)
    pair.follow()
    pair.prepare()
    feed = pair.transports[1].feed
    begin = time.monotonic()
    feed.stop("enough")
    if how == "it is lost":
        feed.lose("its source is gone")
    pair.line.wait(lambda: pair.line.over)
    assert time.monotonic() - begin < SECONDS / 2
    assert pair.line.told[-1][2] == Holding(step=1, prepared=True)


def test_a_follower_does_not_wait_for_a_commit_that_was_abandoned(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what is prepared: whoever knows how the step was committed may tell it in the next view."""
    monkeypatch.setattr(feed_module, "PROMISE_SECONDS", 10 * SECONDS)
    pair.follow()
    pair.prepare()
    pair.transports[1].feed.stop("enough")
    pair.source.abandoned()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][1:] == ("enough", Holding(step=1, prepared=True))


def test_a_step_that_was_abandoned_is_done_in_the_next_view(pair: Pair) -> None:
    pair.follow()
    pair.prepare()
    pair.source.abandoned()
    pair.source.forgotten()
    pair.step()
    assert pair.stop() == Holding(step=2)
    pair.assert_equal()


@pytest.mark.parametrize("told", [True, False])
def test_a_source_leaves_the_view_with_a_follower_that_was_told_to(pair: Pair, told: bool) -> None:
    """It would commit what the one that takes its place does not have. Without one that is lost it goes on."""
    pair.follow()
    pair.transports[0].join(1, 0, {})
    if told:
        assert pair.stop() == Holding(step=1)
    else:
        pair.transports[1].feed.lose("its source is gone")
        pair.line.wait(lambda: pair.line.over)
    pair.prepare()
    assert len(pair.lost) == 1
    if told:
        with pytest.raises(ViewBrokenError, match="this rank's follower was told to leave: enough"):
            pair.transports[0].inbox.check()
    else:
        pair.transports[0].inbox.check()


def test_who_is_told_that_a_stream_is_over_may_wait_for_one_who_sends() -> None:
    feed, met = Feed(), []
    feed.listen(lambda offer: None)
    feed.put(Part(1, 0, Begin("source", "layout")), lambda problem, step: None)

    def told(problem: str | None, step: int) -> None:
        thread = threading.Thread(target=feed.put, args=(Part(1, 2, Prepared(1)), lambda problem, step: None), daemon=True)
        thread.start()
        thread.join(2)
        met.append(thread.is_alive())

    feed.put(Part(1, 1, Prepared(1)), told)
    feed.close(1, "it is over")
    assert met == [False]


def test_memory_of_another_job_is_refused(pair: Pair) -> None:
    pair.states[1].layout += " of another job"
    pair.source.follow("follower")
    pair.source.boundary()
    for thread in threading.enumerate():
        if thread.name == "follow":
            thread.join(SECONDS)
    assert pair.lost == ["the follower's memory has another layout: it is not of the same job, stage or version"]


def test_the_copy_keeps_to_its_bandwidth(pair: Pair) -> None:
    size = pair.states[0].saved.nbytes
    # A third of a second for all of it.
    pair.source = Source(pair.transports[0], pair.states[0], pair.lost.append, SECONDS, bandwidth_mbps=3 * size * 8e-6)
    begin = time.monotonic()
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.level)
    assert time.monotonic() - begin > 0.3


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
    for thread in threading.enumerate():
        if thread.name == "follow":
            thread.join(SECONDS)
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

    def slow() -> str:
        value = digest()
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
        assert not pair.line.changed.wait_for(lambda: pair.line.level, 0.5), "its gradients would be gone"
    pair.commit()
    pair.line.wait(lambda: pair.line.level)
    pair.step()
    pair.stop()
    pair.assert_equal()


def test_gradients_travel_as_they_become_final(pair: Pair) -> None:
    pair.follow()
    pair.source.boundary()
    state, there = pair.states[0], pair.states[1].slots[-1]
    pair.gradients()
    assert pair.source.follows
    # The last first, as a backward pass makes them.
    for slot in reversed(state.slots):
        pair.source.final(slot.weight)
    deadline = time.monotonic() + SECONDS
    while not torch.equal(there.grad, state.slots[-1].grad) and time.monotonic() < deadline:
        time.sleep(0.01)
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


def test_a_step_is_told_as_prepared_only_when_the_follower_knows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that gradients are complete may be lost with its sender like any other."""
    pair.follow()
    take, free = pair.follower._take, threading.Event()

    def slow(body: Any) -> None:
        if isinstance(body, Prepared):
            assert free.wait(SECONDS)
        take(body)

    monkeypatch.setattr(pair.follower, "_take", slow)
    told = threading.Event()
    thread = threading.Thread(target=lambda: (pair.prepare(), told.set()), daemon=True)
    thread.start()
    assert not told.wait(0.3)
    free.set()
    assert told.wait(SECONDS)
    assert pair.states[1].holding == Holding(step=1, prepared=True)


@pytest.mark.parametrize("rows", [[], [0], [3, 17, 40], list(range(64))])
def test_a_span_of_few_words_is_sent_as_rows(rows: list[int]) -> None:
    span = torch.zeros(64 * ROW)
    for row in rows:
        span[row * ROW : (row + 1) * ROW].normal_()
        span[row * ROW + 1] = -0.0
    sent = Gradients.of(5, ROW, span)
    assert (sent.rows is None) == (len(rows) == 64)
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


def test_gradients_of_a_step_that_is_done_again_are_not_taken_for_all(pair: Pair) -> None:
    pair.follow()
    pair.prepare()
    assert pair.states[1].holding == Holding(step=1, prepared=True)
    # The view breaks, and in the next one the step is done again as far as a first gradient.
    pair.source.forgotten()
    pair.states[0].forget_gradients()
    pair.source.boundary()
    pair.gradients()
    for slot in reversed(pair.states[0].slots):
        pair.source.final(slot.weight)
    deadline = time.monotonic() + SECONDS
    while pair.states[1].holding == Holding(step=1, prepared=True) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pair.stop() == Holding(step=1), "what is there is of two tries"
