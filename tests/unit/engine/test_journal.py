"""What waits to be recorded."""

from __future__ import annotations

from lmj_trainer.metrics import evaluate_counts
from lmj_trainer.state.journal import Journal, Line


def line(step: int, who: str = "") -> Line:
    return Line(step, who, float(step))


def steps(journal: Journal) -> list[int]:
    return [one.step for one in journal.lines()]


def evaluation(step: int, hits: int = 1):
    return evaluate_counts([[hits, 1], [1, hits]], 1.0, ["a", "b"], "validation", step)


def test_lines_are_in_order_whoever_knew_them_and_what_is_known_here_counts() -> None:
    journal = Journal()
    for step in (4, 5, 5, 3):
        journal.add(line(step, "mine"))
    journal.merge([line(step, "theirs") for step in (5, 1, 2, 7)], [evaluation(2), evaluation(3)])
    assert [(one.step, one.text) for one in journal.lines()] == [
        (1, "theirs"),
        (2, "theirs"),
        (3, "mine"),
        (4, "mine"),
        (5, "mine"),
        (7, "theirs"),
    ]
    assert not journal.lacks(1, 5)
    assert journal.lacks(1, 6)
    assert journal.lacks(0, 5)
    assert not journal.lacks(6, 5)
    turn = journal.begin(7)
    assert [one.step for one in journal.first(2, turn)] == [1, 2]
    assert [[one.step for one in journal.first(2, turn, after)] for after in (1, 3, 5, 7)] == [[2, 3], [4, 5], [7], []]
    journal.written(4, turn)
    journal.add(line(4))
    journal.merge([line(3)], [])
    assert steps(journal) == [5, 7]


def test_what_is_recorded_is_what_has_nothing_before_it_that_waits() -> None:
    journal = Journal()
    turn = journal.begin(0)
    for step in (1, 2, 3):
        journal.add(line(step))
    journal.evaluated(evaluation(2))
    journal.evaluated(result := evaluation(2, hits=5))
    journal.durable(3, turn)
    journal.written(3, turn)
    assert journal.recorded == 0, "a power cut would cost them"
    journal.durable(9, turn - 1)
    assert journal.recorded == 0
    journal.durable(3, turn)
    assert journal.recorded == 1
    journal.filed([evaluation(2, hits=5)], turn)
    assert journal.evaluations() == [result], "another was filed, and this one came meanwhile"
    journal.filed([result], turn)
    assert (journal.recorded, journal.evaluations()) == (3, [])


def test_the_word_of_rank_0_settles_what_the_others_keep() -> None:
    journal = Journal()
    for step in (1, 2, 3):
        journal.add(line(step))
        journal.evaluated(evaluation(step))
    journal.settle(2)
    assert steps(journal) == [3]
    assert journal.evaluations() == [evaluation(3)]
    journal.settle(1)
    journal.add(line(2))
    assert steps(journal) == [3]


def test_steps_that_are_done_again_are_forgotten_and_recorded_again() -> None:
    journal = Journal()
    turn = journal.begin(0)
    for step in range(1, 6):
        journal.add(line(step))
        journal.evaluated(evaluation(step))
    journal.written(4, turn)
    journal.durable(4, turn)
    journal.forget(2)
    assert (steps(journal), journal.evaluations()) == ([], [evaluation(1), evaluation(2)])
    journal.add(line(3))
    assert steps(journal) == [3]
    turn = journal.begin(2)
    journal.filed(journal.evaluations(), turn)
    assert journal.recorded == 2, "what is done again is not recorded yet"


def test_a_writer_whose_view_is_over_neither_takes_nor_settles_anything() -> None:
    """Its storage hung, and answers after the next view has gone back."""
    journal = Journal()
    old = journal.begin(0)
    journal.add(line(1))
    new = journal.begin(0)
    journal.add(line(1))
    journal.evaluated(result := evaluation(1))
    assert journal.first(9, old) == []
    journal.written(5, old)
    journal.filed([result], old)
    assert [one.step for one in journal.first(9, new)] == [1]
    assert journal.evaluations() == [result]


def test_it_has_a_bound_and_the_oldest_go() -> None:
    journal = Journal(limit=3)
    for step in range(1, 6):
        journal.add(line(step))
    assert steps(journal) == [3, 4, 5]
    journal.merge([line(step) for step in range(1, 9)], [])
    assert steps(journal) == [6, 7, 8]
