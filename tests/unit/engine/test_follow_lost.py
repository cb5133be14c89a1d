"""A follower that is gone, or too slow, is let go, and training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from lmj_api.protocol import Holding
from lmj_trainer.follow import source as source_module
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.parts import InSync, Part

from .pair import SECONDS, Pair, eventually

pytestmark = pytest.mark.integration


def test_training_goes_on_without_a_follower_that_is_gone(pair: Pair) -> None:
    pair.source.follow("nobody")
    pair.step()
    pair.await_refusal()
    assert pair.lost
    assert pair.lost[0] == "nobody is gone"
    pair.step()
    assert pair.states[0].step == 2


def test_training_goes_on_without_a_follower_that_does_not_take(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.follow()
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    stuck = threading.Event()
    monkeypatch.setattr(pair.follower, "_take", lambda source, body: stuck.wait(SECONDS))
    pair.step()
    assert pair.lost == ["it did not take the gradients of step 2 within 0.2 s"]
    stuck.set()
    pair.step()
    assert pair.states[0].step == 3


def test_a_follower_that_was_let_go_follows_no_more(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives: what it has gets older with every step, and nobody may take it for one in sync."""
    pair.follow()
    take, stuck = pair.follower._take, threading.Event()
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    monkeypatch.setattr(pair.follower, "_take", lambda source, body: (stuck.wait(SECONDS), take(source, body)))
    pair.step()
    assert pair.lost
    stuck.set()
    pair.step()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][2] == Holding(step=1), "it did not get all gradients"


def test_training_waits_for_a_commit_to_be_taken_only_so_long(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.first = True
    pair.follow()
    pair.prepare()
    stuck, take = threading.Event(), pair.follower._take
    monkeypatch.setattr(pair.source, "_patience", 0.2)
    monkeypatch.setattr(pair.follower, "_take", lambda source, body: (stuck.wait(SECONDS), take(source, body)))
    pair.commit()
    assert pair.lost == ["it did not take the commit of step 2 within 0.2 s"]
    stuck.set()


def test_training_waits_only_so_long_for_one_that_takes_a_little_now_and_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait too, and would blame this rank in the end."""
    pair.follow()
    monkeypatch.setattr(source_module, "WINDOW", 1)
    monkeypatch.setattr(source_module, "_PART", 64)
    monkeypatch.setattr(pair.source, "_longest", 0.3)
    take, over = pair.follower._take, threading.Event()
    monkeypatch.setattr(pair.follower, "_take", lambda source, body: (over.wait(0.05), take(source, body)))
    pair.step()
    over.set()
    assert pair.lost == ["it did not take the gradients of step 2 within 0.3 s"]


def test_one_that_was_told_to_leave_takes_no_commit_and_there_is_none(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take this rank's place without the step."""
    monkeypatch.setattr("lmj_trainer.transport.feed.PROMISE_SECONDS", 0.05)
    pair.first = True
    pair.follow()
    pair.prepare()
    pair.stop()
    with pytest.raises(ViewBrokenError, match="this rank's follower was told to leave"):
        pair.commit()
    assert pair.states[0].holding == Holding(step=1, prepared=True)


def test_the_loss_of_one_follower_is_no_word_on_the_next(pair: Pair) -> None:
    pair.follow()
    pair.source.follow("next")
    stream = pair.source._streams["follower"]
    pair.source._fail(stream, "its node has no power")
    assert list(pair.source._wanted) == ["next"]


def test_a_stream_that_is_over_is_not_begun(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    late = []
    monkeypatch.setattr(source_module.threading.Thread, "start", lambda thread: late.append(thread))
    pair.source.follow("follower")
    pair.source.boundary()
    pair.source.restart()
    monkeypatch.undo()
    told = []
    monkeypatch.setattr(pair.transports[0], "tell", lambda *part: told.append(part))
    for thread in late:
        thread.run()
    assert len(late) == 2
    assert not told


def test_what_the_source_cannot_serve_is_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(runs: list[slice]) -> str:
        raise MemoryError("no room for a digest")

    monkeypatch.setattr(pair.states[0], "digest", digest)
    pair.source.follow("follower")
    pair.step()
    eventually(lambda: bool(pair.lost))
    assert pair.lost == ["it could not be served: MemoryError: no room for a digest"]
    pair.step()
    assert pair.states[0].step == 2


def test_what_is_level_counts_when_its_digest_is_right_and_not_before(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed meanwhile leaves the memory to the next, which believes the ledger."""
    steps, digest = [], pair.states[1].digest

    def seen(runs: list[slice]) -> str:
        steps.append(pair.states[1].step)
        return digest(runs)

    monkeypatch.setattr(pair.states[1], "digest", seen)
    pair.follow()
    assert steps == [-1]
    assert pair.states[1].step >= 0


def test_nobody_gets_a_state_that_is_no_steps(pair: Pair) -> None:
    """At the end the best weights may take the place of the newest."""
    pair.states[0].fill(-1)
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.over)
    assert pair.line.told[-1][1].startswith("training is over")
    assert pair.line.copied[-1].step is None
    assert not pair.lost


def test_nobody_is_level_with_a_state_that_became_no_steps(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    state, digest, tell = pair.states[0], pair.states[0].digest, pair.transports[0].tell
    sent: list[object] = []

    def replaced(runs: list[slice]) -> str:
        """Training ends while the state is read to compare it."""
        state.fill(-1)
        return digest(runs)

    def seen(address: str, part: Part, done: Callable[[str | None, int], None]) -> None:
        sent.append(part.body)
        tell(address, part, done)

    monkeypatch.setattr(state, "digest", replaced)
    monkeypatch.setattr(pair.transports[0], "tell", seen)
    pair.source.follow("follower")
    pair.source.boundary()
    pair.line.wait(lambda: pair.line.over)
    pair.await_refusal()
    assert pair.line.told[-1][1:] == (source_module._NO_STATE, None)
    assert not any(isinstance(body, InSync) for body in sent)
    assert not pair.lost


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
    pair.line.wait(lambda: pair.line.in_sync)
    assert not pair.lost
    pair.step()
    assert pair.stop() == Holding(step=4)
    pair.assert_equal()


def test_a_follower_that_does_not_begin_is_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BEGIN_SECONDS", 0.05)
    begin = threading.Event()
    monkeypatch.setattr(pair.follower, "_rehearse", lambda: begin.wait(SECONDS))
    pair.source.follow("follower")
    pair.step()
    pair.await_refusal()
    begin.set()
    assert pair.lost == ["it did not answer within 0.05 s"]
