"""What a worker says of its preparation: progress of its own, and a warning of the data once, though all ranks look at it."""

from typing import Any

import pytest

from lmj_api.protocol import EventKind
from lmj_trainer.wording import WARNING
from lmj_trainer.worker.preparation import teller


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[EventKind, str]] = []

    def emit(self, kind: EventKind, message: str, **more: Any) -> None:
        self.events.append((kind, message))


@pytest.mark.parametrize(("rank", "warned"), [(0, [(EventKind.WARNING, "an odd row")]), (1, []), (None, [])])
def test_a_warning_of_the_data_is_given_once(rank: int | None, warned: list[tuple[EventKind, str]]) -> None:
    heard: Any = Heard()
    say = teller(heard, rank)
    say("tokenizing train")
    say(f"{WARNING}an odd row")
    assert heard.events == [(EventKind.PREPARING, "tokenizing train"), *warned]
