"""Who may count on whom, between a source and its follower."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from lmj_api.protocol import Holding
from lmj_trainer.follow.copy_pace import CopyPace
from lmj_trainer.follow.stream import LEAST_COPY_WINDOW, WINDOW, Stream
from lmj_trainer.state.share import Placed, Share
from lmj_trainer.transport import feed as feed_module
from lmj_trainer.transport.feed import LEFT, Feed, FeedOverError, Offer
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.parts import Begin, Part, Prepared

from .pair import SECONDS, Pair, eventually

pytestmark = pytest.mark.integration

BEGIN = Begin("source", "job", (Placed("weight", (2,), 0),), {})


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


def test_a_step_is_told_as_prepared_only_when_the_follower_knows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that gradients are complete may be lost with its sender like any other."""
    pair.follow()
    take, free = pair.follower._take, threading.Event()

    def slow(source: Any, body: Any) -> None:
        if isinstance(body, Prepared):
            assert free.wait(SECONDS)
        take(source, body)

    monkeypatch.setattr(pair.follower, "_take", slow)
    told = threading.Event()
    thread = threading.Thread(target=lambda: (pair.prepare(), told.set()), daemon=True)
    thread.start()
    assert not told.wait(0.3)
    free.set()
    assert told.wait(SECONDS)
    assert pair.states[1].holding == Holding(step=1, prepared=True)


def test_gradients_that_are_not_all_are_no_promise(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is told to leave in the middle of a step leaves at once: nobody can have counted on it."""
    pair.follow()
    pair.step()
    monkeypatch.setattr(feed_module, "PROMISE_SECONDS", 10 * SECONDS)
    pair.source.boundary()
    pair.gradients()
    pair.final()
    eventually(lambda: pair.states[1].dirty)
    assert pair.stop() == Holding(step=pair.states[0].step)


def test_the_follower_of_rank_0_knows_of_a_commit_before_anybody_else(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that it has taken it: nobody waits for that."""
    pair.follow()
    pair.prepare()
    go_on, apply = threading.Event(), pair.optimizers[1].apply
    monkeypatch.setattr(pair.optimizers[1], "apply", lambda: (go_on.wait(SECONDS), apply()))
    pair.source.committed(0.5, 1e-3, "what is recorded", first=True)
    assert pair.states[1].committed == (2, 0.5, 1e-3)
    assert pair.states[1].line == "what is recorded"
    assert pair.states[1].step == 1
    assert pair.states[1].holding == Holding(step=2)
    go_on.set()
    pair.transports[1].feed.lose("its source is gone")
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][2] == Holding(step=2)


def test_a_follower_knows_all_that_waits_to_be_recorded(pair: Pair) -> None:
    """Also of steps before it followed: storage may be away for long, and who takes the place of rank 0 records it."""
    pair.first = True
    for _ in range(3):
        pair.step()
    pair.states[0].journal.settle(1)
    pair.follow()
    pair.step()
    theirs, last = pair.states[1].journal, pair.states[0].step
    assert [(line.step, line.text) for line in theirs.lines()] == [(step, f"step {step}") for step in range(2, last + 1)]
    pair.states[0].journal.settle(last)
    pair.step()
    assert pair.stop() == Holding(step=last + 1)
    assert [line.step for line in theirs.lines()] == [last + 1]
    assert theirs.recorded == last


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


def test_a_stream_that_nobody_takes_up_is_refused(pair: Pair) -> None:
    """Its source waits for the answer, and the worker must not come back to it after the view that it has meanwhile."""
    feed, offers = Feed(), []
    told: list[tuple[int, str | None]] = []

    def begin(stream: int) -> None:
        feed.put(Part(stream, 0, BEGIN), lambda problem, _: told.append((stream, problem)))

    feed.listen(offers.append)
    begin(1)
    begin(2)
    assert told == [(1, "another stream has begun")]
    feed.listen(None)
    assert told[1:] == [(2, "this worker follows nobody now")]
    begin(3)
    assert told[2:] == [(3, "this worker follows nobody now")]
    offers[1].done(None, 7)
    assert len(told) == 3, "it was answered already"
    pair.transports[1].feed = pair.follower._feed = feed
    pair.follower.run(offers[1])
    assert not pair.line.told, "nothing was followed"


def test_a_part_of_a_stream_that_is_over_is_refused_without_a_word_on_who_leaves() -> None:
    feed, told = Feed(), []
    feed.put(Part(1, 1, Prepared(2)), lambda problem, answer: told.append((problem, answer)))
    ((problem, answer),) = told
    assert problem == "the stream is over"
    assert answer != LEFT, "its source would leave the view with it"


def test_who_is_told_that_a_stream_is_over_may_wait_for_one_who_sends() -> None:
    feed, met = Feed(), []
    feed.listen(lambda offer: None)
    feed.put(Part(1, 0, BEGIN), lambda problem, step: None)

    def told(problem: str | None, step: int) -> None:
        thread = threading.Thread(target=feed.put, args=(Part(1, 2, Prepared(1)), lambda problem, step: None), daemon=True)
        thread.start()
        thread.join(2)
        met.append(thread.is_alive())

    feed.put(Part(1, 1, Prepared(1)), told)
    feed.close(1, "it is over")
    assert met == [False]


def test_a_step_is_said_to_be_complete_when_nothing_of_it_is_under_way() -> None:
    stream = a_stream()
    assert not stream.may_go
    stream.due.append((3, slice(0, 8)))
    stream.under_way = WINDOW - 1
    assert stream.may_go
    stream.under_way = WINDOW
    assert not stream.may_go
    stream.due[0] = (3, None)
    stream.under_way = 1
    assert not stream.may_go
    stream.under_way = 0
    assert stream.may_go


def a_stream() -> Stream:
    return Stream("follower", Share([]), CopyPace(1, gentle=False, usual=lambda: None))


def test_more_of_a_copy_is_under_way_where_more_goes_in_the_time_of_an_answer() -> None:
    stream = a_stream()

    def most() -> int:
        sizes = range(0, 2 * WINDOW, 1 << 20)
        found = []
        for stream.under_way in sizes:
            found.append(stream.copy_may_go)
        return found.index(False) << 20

    assert most() == LEAST_COPY_WINDOW, "nothing is known of the network"
    stream.took(4 << 20, 0.04)  # 105 MB a second
    assert most() == LEAST_COPY_WINDOW
    stream.took(10 << 20, 0.04)
    assert most() == 10 << 20
    stream.took(100, 1.0)
    assert most() == 10 << 20, "of a few bytes nothing is seen"
    stream.took(6 << 20, 0.0)
    assert most() == WINDOW


def test_what_waits_is_packed_where_the_network_is_slow() -> None:
    stream = a_stream()
    stream.due.append((3, slice(0, 8)))
    stream.under_way = WINDOW
    assert stream.waits_for_network, "nothing is known of the network"
    stream.took(WINDOW, WINDOW / 201e6)
    assert not stream.waits_for_network
    stream.took(WINDOW, WINDOW / 125e6)
    assert stream.waits_for_network
    stream.waiting = 1
    assert not stream.waits_for_network, "it is the follower that is slow"
    stream.waiting, stream.under_way = 0, 0
    assert not stream.waits_for_network, "it may go"


def begin_with(feed: Feed, stream: int, *names: str) -> list[tuple[str | None, int]]:
    """A stream begins that brings these parameters; its answer, once there is one."""
    answers: list[tuple[str | None, int]] = []
    placed = tuple(Placed(name, (2,), 16 * index) for index, name in enumerate(names))
    feed.put(Part(stream, 0, Begin(f"source-{stream}", "job", placed, {})), lambda *answer: answers.append(answer))
    return answers


def test_streams_that_bring_other_parameters_are_taken_together() -> None:
    feed, offers = Feed(), []
    feed.listen(offers.append)
    one, two = begin_with(feed, 1, "a", "b"), begin_with(feed, 2, "c")
    assert [offer.stream for offer in offers] == [1], "the second is no order of its own"
    second = feed.take(1, SECONDS)
    assert isinstance(second, Offer)
    assert (second.stream, one, two) == (2, [], [])
    for stream in (1, 2):
        for number in (2, 1):  # the network may change their order
            feed.put(Part(stream, number, Prepared(number)), lambda problem, answer: None)
    taken = [feed.take(1, SECONDS) for _ in range(4)]
    parts = [each[0] for each in taken if isinstance(each, tuple)]
    assert [(part.stream, part.number) for part in parts] == [(1, 1), (2, 1), (1, 2), (2, 2)], "none has to wait for the other"
    assert feed.take(1, 0.0) is None


def test_a_stream_that_brings_what_another_brings_ends_all() -> None:
    feed, offers = Feed(), []
    feed.listen(offers.append)
    begin_with(feed, 1, "a")
    begin_with(feed, 2, "b")
    refused: list[tuple[str | None, int]] = []
    feed.put(Part(2, 1, Prepared(1)), lambda *answer: refused.append(answer))
    begin_with(feed, 3, "b", "c")
    assert refused == [("another stream has begun", -1)]
    assert [offer.stream for offer in offers] == [1, 3]
    with pytest.raises(FeedOverError, match="another stream has begun"):
        feed.take(1, SECONDS)
    feed.put(Part(1, 1, Prepared(1)), lambda *answer: refused.append(answer))
    assert refused[1:] == [("the stream is over", -1)]


def test_what_came_of_each_before_the_end_is_taken() -> None:
    feed = Feed()
    feed.listen(lambda offer: None)
    begin_with(feed, 1, "a")
    begin_with(feed, 2, "b")
    assert isinstance(feed.take(1, SECONDS), Offer)
    for stream in (1, 2):
        feed.put(Part(stream, 1, Prepared(1)), lambda problem, answer: None)
    feed.stop("enough")
    late: list[tuple[str | None, int]] = []
    feed.put(Part(2, 2, Prepared(2)), lambda *answer: late.append(answer))
    assert [feed.take(1, SECONDS)[0].stream for _ in range(2)] == [1, 2]  # type: ignore[index, union-attr]
    with pytest.raises(FeedOverError, match="enough"):
        feed.take(1, SECONDS)
    feed.close(1, "enough")
    assert late == [("enough", LEFT)]
