"""The confusion matrix of an evaluation."""

from xml.etree import ElementTree

import pytest

from lmj_api.protocol import Evaluation
from lmj_operator.cli.report.matrix import MOST, Matrix, matrix_of, svg

SVG = "{http://www.w3.org/2000/svg}"


def evaluation(labels: list[str], confusion: list[list[int]]) -> Evaluation:
    return Evaluation(split="test", step=1, samples=10, loss=0.5, accuracy=0.9, f1=0.8, labels=labels, confusion=confusion)


def test_few_labels_are_drawn_as_they_are() -> None:
    made = matrix_of(evaluation(["a", "b"], [[5, 0], [1, 4]]))
    assert made == Matrix(["a", "b"], [[5, 0], [1, 4]], 2)
    drawn = ElementTree.fromstring(svg(made, 430))
    cells = list(drawn.iter(f"{SVG}g"))
    assert [cell.get("class") for cell in cells] == ["cell right deep", "cell wrong", "cell wrong", "cell right deep"]
    assert [cell.findtext(f"{SVG}text") for cell in cells] == ["5 (100.0%)", "0 (0.0%)", "1 (20.0%)", "4 (80.0%)"]
    assert cells[2].findtext(f"{SVG}title") == "b taken for a: 1 of 5, 20.0%"
    shade = [cell.findall(f"{SVG}rect")[1].get("fill-opacity") for cell in cells]
    assert shade == ["1.000", "0.000", "0.200", "0.800"]


def test_of_many_labels_those_with_the_most_mistakes_and_the_others_together() -> None:
    count = 30
    counts = [[100 if i == j else 0 for j in range(count)] for i in range(count)]
    worst = list(range(7, 7 + MOST - 1))
    for index in worst:
        counts[index][0] = 50 if index == 7 else 3
    made = matrix_of(evaluation([f"l{index}" for index in range(count)], counts))
    assert made is not None
    # Label 0 is what all were taken for, so it is among them; the last of those with three mistakes is not.
    assert list(made.labels) == ["l0", *(f"l{index}" for index in worst[:-1]), f"{count - MOST + 1} others"]
    assert made.whole == count
    assert sum(map(sum, made.counts)) == sum(map(sum, counts))
    assert made.counts[-1][-1] == 100 * (count - MOST + 1)
    assert (made.counts[1][0], made.counts[-1][0]) == (50, 3)


@pytest.mark.parametrize(
    ("labels", "confusion"), [([], []), (["a"], []), (["a", "b"], [[1, 2]]), (["a", "b"], [[1, 2], [3]]), (["a"], [[1, 2]])]
)
def test_a_matrix_that_is_none_is_not_drawn(labels: list[str], confusion: list[list[int]]) -> None:
    assert matrix_of(evaluation(labels, confusion)) is None


def test_no_evaluation_has_none() -> None:
    assert matrix_of(None) is None


def test_long_names_are_cut_and_are_text() -> None:
    name = "<script>" + "x" * 100
    drawn = ElementTree.fromstring(svg(Matrix([name, "b"], [[0, 0], [0, 0]], 2), 430))
    texts = [each for each in drawn.iter(f"{SVG}text") if each.findtext(f"{SVG}title") == name]
    assert len(texts) == 2
    assert all(len("".join(each.itertext()).removeprefix(name)) < 30 for each in texts)
