"""Where messages wait: the view's fence, its end, and every wait's deadline."""

from __future__ import annotations

import threading
import time

import pytest

from lmj_api.view import MOST_RANKS
from lmj_trainer.transport import inbox as inbox_module
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import BOUND, Inbox, ViewBrokenError


def envelope(view: int, step: int = 0, index: int = 0, payload: object = None, sender: int = 0) -> Envelope:
    return Envelope(view, Kind.ACTIVATION, step, index, sender, payload)


def take(inbox: Inbox, step: int = 0, index: int = 0, timeout: float = 0.05, view: int | None = None):
    return inbox.take(Kind.ACTIVATION, step, index, 0, timeout, view)


@pytest.fixture
def inbox() -> Inbox:
    result = Inbox()
    result.open(1)
    return result


def test_messages_are_taken_by_name_and_once(inbox: Inbox) -> None:
    for index in (2, 0, 1):
        assert inbox.put(envelope(1, index=index, payload=f"message {index}"))
    assert inbox.poll(Kind.ACTIVATION, 0, 1, 0)
    assert [take(inbox, index=i) for i in range(3)] == ["message 0", "message 1", "message 2"]
    assert not inbox.poll(Kind.ACTIVATION, 0, 1, 0)


def test_none_is_a_payload(inbox: Inbox) -> None:
    inbox.put(envelope(1))
    assert take(inbox) is None


def test_a_wait_ends_at_its_deadline_and_says_for_what(inbox: Inbox) -> None:
    with pytest.raises(ViewBrokenError, match=r"no activation 3 of step 7 from rank 0 within 0\.05 s"):
        take(inbox, 7, 3)


def test_a_message_wakes_the_one_that_waits(inbox: Inbox) -> None:
    threading.Timer(0.05, inbox.put, [envelope(1, payload=5)]).start()
    assert take(inbox, timeout=30) == 5


def test_a_failure_wakes_the_one_that_waits(inbox: Inbox) -> None:
    threading.Timer(0.05, inbox.fail, [1, "rank 1 is lost"]).start()
    started = time.monotonic()
    with pytest.raises(ViewBrokenError, match="rank 1 is lost"):
        take(inbox, timeout=60)
    assert time.monotonic() - started < 30


def test_the_first_reason_stays(inbox: Inbox) -> None:
    inbox.fail(1, "rank 1 is lost")
    inbox.fail(1, "rank 2 is lost")
    for call in (inbox.check, lambda: take(inbox), lambda: inbox.poll(Kind.COMMIT, 0, 0, 0)):
        with pytest.raises(ViewBrokenError, match="rank 1 is lost"):
            call()


def test_a_failure_of_another_view_is_not_this_one_s(inbox: Inbox) -> None:
    inbox.open(2)
    inbox.fail(1, "rank 1 is lost")
    inbox.check()


def test_a_broken_view_ends_with_the_next(inbox: Inbox) -> None:
    inbox.fail(1, "rank 1 is lost")
    inbox.open(2)
    inbox.check()
    assert inbox.view == 2


def test_views_only_grow(inbox: Inbox) -> None:
    inbox.open(5)
    for number in (5, 4):
        with pytest.raises(ValueError, match=f"view {number} is not newer than 5"):
            inbox.open(number)


def test_messages_of_an_older_view_are_refused_and_those_under_way_dropped(inbox: Inbox) -> None:
    inbox.put(envelope(1, payload="old"))
    inbox.open(2)
    assert not inbox.put(envelope(1, payload="older"))
    with pytest.raises(ViewBrokenError, match="within"):
        take(inbox)


def test_messages_of_a_view_to_come_wait_for_it(inbox: Inbox) -> None:
    assert inbox.put(envelope(3, payload="three"))
    assert inbox.put(envelope(2, payload="two"))
    assert not inbox.poll(Kind.ACTIVATION, 0, 0, 0)
    inbox.open(2)
    assert take(inbox) == "two"
    inbox.open(3)
    assert take(inbox) == "three"


def test_whoever_waits_in_a_view_that_is_over_is_told(inbox: Inbox) -> None:
    """A checkpoint's thread waits for parts of the view that it began in."""
    threading.Timer(0.05, inbox.open, [2]).start()
    started = time.monotonic()
    with pytest.raises(ViewBrokenError, match="view 1 is over"):
        take(inbox, timeout=60, view=1)
    assert time.monotonic() - started < 30


def test_more_messages_than_a_rank_can_have_under_way_to_another_break_the_view(inbox: Inbox) -> None:
    for sender in (7, 8):
        for index in range(BOUND):
            inbox.put(envelope(1, index=index, sender=sender))
    inbox.check()
    inbox.put(envelope(1, index=BOUND, sender=8))
    with pytest.raises(ViewBrokenError, match=f"{BOUND} messages of rank 8 wait unread"):
        inbox.check()


def test_an_inbox_has_room_for_a_word_of_each_of_the_most_ranks(inbox: Inbox) -> None:
    for sender in range(1, MOST_RANKS):
        for index in range(8):
            inbox.put(envelope(1, index=index, payload=sender, sender=sender))
    inbox.check()
    assert inbox.take(Kind.ACTIVATION, 0, 7, 1023, 0.05) == 1023


def test_a_newer_view_ends_the_one_being_served(inbox: Inbox) -> None:
    inbox.supersede(2, "view 2: rank 1 was replaced")
    with pytest.raises(ViewBrokenError, match="view 2: rank 1 was replaced"):
        inbox.check()
    inbox.open(2)
    inbox.check()


def test_a_newer_view_that_comes_late_does_not_end_itself(inbox: Inbox) -> None:
    """The reading thread may report a view after the computing one has joined it."""
    inbox.open(2)
    inbox.supersede(2, "view 2: rank 1 was replaced")
    inbox.check()


def test_a_view_that_is_joined_when_a_newer_one_is_known_is_over_at_once(inbox: Inbox) -> None:
    inbox.supersede(3, "view 3: rank 1 was replaced")
    inbox.open(2)
    with pytest.raises(ViewBrokenError, match="view 3"):
        inbox.check()
    inbox.open(3)
    inbox.check()


def test_diverted_messages_go_to_who_asked_for_them_and_to_nobody_else(inbox: Inbox) -> None:
    told: list[Envelope] = []
    inbox.divert(Kind.SNAPSHOT, told.append)
    now, early, late = (Envelope(view, Kind.SNAPSHOT, 4, 0, 1, f"of view {view}") for view in (1, 2, 0))
    assert inbox.put(now)
    assert inbox.put(early)
    assert not inbox.put(late)
    assert told == [now]
    assert not inbox.poll(Kind.SNAPSHOT, 4, 0, 1)
    inbox.open(2)
    assert told == [now, early]
    assert not inbox.poll(Kind.SNAPSHOT, 4, 0, 1)


ANSWER = Envelope(1, Kind.COMMIT, 0, 0, 0, "yes")


def take_promised(inbox: Inbox):
    return inbox.take(Kind.COMMIT, 0, 0, 0, 60, promised=True)


def test_who_promised_waits_for_the_answer_when_the_view_is_to_be_left(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "PROMISE_SECONDS", 60)
    inbox.supersede(2, "a newer view")
    threading.Timer(0.05, inbox.put, [ANSWER]).start()
    assert take_promised(inbox) == "yes"


def test_an_answer_that_came_before_its_sender_was_lost_counts(inbox: Inbox) -> None:
    inbox.put(ANSWER)
    inbox.fail(1, "rank 0 is lost", 0)
    assert take_promised(inbox) == "yes"


@pytest.mark.parametrize("when", [0.0, 0.05])
def test_nobody_waits_for_the_answer_of_a_rank_that_is_lost(inbox: Inbox, monkeypatch: pytest.MonkeyPatch, when: float) -> None:
    monkeypatch.setattr(inbox_module, "PROMISE_SECONDS", 60)
    inbox.supersede(2, "a newer view")
    timer = threading.Timer(when, inbox.fail, [1, "rank 0 is lost", 0])
    timer.start()
    if when == 0.0:
        timer.join()
    started = time.monotonic()
    with pytest.raises(ViewBrokenError, match="a newer view"):
        take_promised(inbox)
    assert time.monotonic() - started < 30


def test_the_answer_is_waited_for_for_a_while_only(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "PROMISE_SECONDS", 0.05)
    threading.Timer(0.05, inbox.supersede, [2, "a newer view"]).start()
    started = time.monotonic()
    with pytest.raises(ViewBrokenError, match="a newer view"):
        take_promised(inbox)
    assert time.monotonic() - started < 30
