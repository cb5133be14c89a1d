"""What is told of a rank's steps, and how waiting is told from work."""

from __future__ import annotations

import threading
import time

import pytest

from lmj_api.topology import Topology
from lmj_trainer.group.group import Group
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker.step_times import StepTimes


def after(*steps: float) -> StepTimes:
    times = StepTimes()
    for seconds in steps:
        times.add(seconds, 2 * seconds, 4 * seconds)
    return times


def test_the_first_steps_of_a_view_say_nothing() -> None:
    times = after(1.0, 2.0)
    assert (times.compute, times.waiting, times.whole) == (None, None, None)
    times = after(1.0, 2.0, 1.0)
    assert (times.compute, times.waiting, times.whole) == (1.0, 2.0, 4.0)


def test_four_steps_of_nine_may_be_as_slow_as_they_like() -> None:
    assert after(*[1.0] * 5, *[100.0] * 4).compute == 1.0
    assert after(*[1.0] * 4, *[100.0] * 5).compute == 100.0


def test_what_was_long_ago_does_not_count() -> None:
    assert after(*[100.0] * 50, *[1.0] * 5).compute == 1.0


def test_another_view_begins_anew() -> None:
    times = after(1.0, 1.0, 1.0)
    times.begin()
    assert (times.compute, times.waiting, times.whole) == (None, None, None)


def test_it_is_told_to_the_microsecond() -> None:
    assert after(*[1 / 3] * 3).compute == 0.333333


def test_a_group_knows_how_long_it_has_waited() -> None:
    transport = MemoryTransport({}, "me")
    transport.join(1, 0, {})
    group = Group(transport, 0, Topology(2), 30.0)
    timer = threading.Timer(0.2, lambda: transport.inbox.put(Envelope(1, Kind.ACTIVATION, 0, 0, 1, "late")))
    begin = time.monotonic()
    timer.start()
    assert group.take(Kind.ACTIVATION, 0, 1) == "late"
    whole = time.monotonic() - begin
    assert 0.15 < group.waited <= whole
    before = group.waited
    transport.inbox.put(Envelope(1, Kind.ACTIVATION, 1, 0, 1, "there"))
    group.take(Kind.ACTIVATION, 1, 1)
    assert group.waited - before < 0.15, "what is there is not waited for"


def test_waiting_in_vain_is_waiting() -> None:
    transport = MemoryTransport({}, "me")
    transport.join(1, 0, {})
    group = Group(transport, 0, Topology(2), 0.1)
    with pytest.raises(ViewBrokenError):
        group.take(Kind.ACTIVATION, 0, 1)
    assert group.waited >= 0.1
