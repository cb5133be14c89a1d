"""A follower that is gone, or too slow, is let go, and training goes on."""

from __future__ import annotations

import threading
import time

import pytest

from lmj_api.protocol import Holding
from lmj_trainer.follow import source as source_module

from .pair import SECONDS, Pair


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
    pair.await_refusal()
    begin.set()
    assert pair.lost == ["it did not answer within 0.05 s"]
