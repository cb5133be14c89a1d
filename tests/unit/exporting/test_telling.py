"""What takes its time is told."""

import time

from lmj_trainer.exporting.telling import telling


def test_what_is_quick_says_nothing() -> None:
    said: list[str] = []
    with telling("writing", said.append):
        pass
    assert said == []


def test_what_takes_longer_says_so_now_and_then() -> None:
    said: list[str] = []
    with telling("writing", said.append, first=0.01, then=0.02):
        deadline = time.monotonic() + 10
        while len(said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert said[:2] == ["writing: 0 s", "writing: 0 s"]
    told = len(said)
    time.sleep(0.1)
    assert len(said) == told, "it is over"
