"""Which signals end a run with a checkpoint, and which at once."""

import signal

import pytest

from lmj_operator.cli.leaving import Leaving, Meaning

INT, TERM = signal.SIGINT, signal.SIGTERM
CHECKPOINT, AT_ONCE, NOTHING = Meaning.CHECKPOINT, Meaning.AT_ONCE, Meaning.NOTHING


@pytest.mark.parametrize(
    ("heard", "meanings"),
    [
        ([(TERM, 0.0), (TERM, 0.02)], [CHECKPOINT, NOTHING]),
        ([(TERM, 0.0), (TERM, 5.0), (TERM, 60.0)], [CHECKPOINT, NOTHING, NOTHING]),
        ([(INT, 0.0), (INT, 0.02), (INT, 0.9)], [CHECKPOINT, NOTHING, NOTHING]),
        ([(INT, 0.0), (INT, 1.0)], [CHECKPOINT, AT_ONCE]),
        ([(INT, 7.0), (INT, 7.5), (INT, 8.1)], [CHECKPOINT, NOTHING, AT_ONCE]),
        ([(INT, 0.0), (TERM, 5.0)], [CHECKPOINT, NOTHING]),
        ([(TERM, 0.0), (INT, 5.0)], [CHECKPOINT, NOTHING]),
        ([(TERM, 0.0), (INT, 5.0), (INT, 5.3), (INT, 7.0)], [CHECKPOINT, NOTHING, NOTHING, AT_ONCE]),
    ],
)
def test_only_a_second_ctrl_c_is_in_a_hurry(heard: list[tuple[int, float]], meanings: list[Meaning]) -> None:
    leaving = Leaving()
    assert [leaving.heard(number, now) for number, now in heard] == meanings
