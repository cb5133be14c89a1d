"""The tables of measured figures are those of the result files."""

import re
from pathlib import Path

import pytest
from figures.__main__ import main
from figures.form import number
from figures.tables import TABLES, filled

CHECKOUT = Path(__file__).resolve().parents[3]
PAPERS = [CHECKOUT / "README.md", CHECKOUT / "docs" / "benchmarks.md"]


def test_all_tables_are_fresh_and_each_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", *map(str, PAPERS)]) == 0, capsys.readouterr().err
    shown = [name for paper in PAPERS for name in re.findall(r"<!-- figures: ([a-z-]+) -->", paper.read_text())]
    assert sorted(shown) == sorted(TABLES)


def test_a_stale_table_is_an_error_and_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper = tmp_path / "paper.md"
    fresh = filled("before\n<!-- figures: recovery -->\n<!-- end -->\nafter\n")
    paper.write_text(fresh.replace("0.19 s", "0.18 s") if "0.19 s" in fresh else fresh.replace(" s ", " min "))
    assert main(["--check", str(paper)]) == 1
    assert "make figures" in capsys.readouterr().err
    assert main([str(paper)]) == 0
    assert paper.read_text() == fresh
    assert fresh.startswith("before\n")
    assert fresh.endswith("after\n")


def test_a_table_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(KeyError):
        filled("<!-- figures: nothing -->\n<!-- end -->\n")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (19.0, "19"), (18.875, "18.9"), (165.003, "165"), (0.18996, "0.19"), (0.011174, "0.011")]
)
def test_numbers_have_the_digits_that_are_worth_reading(value: float, text: str) -> None:
    assert number(value) == text
