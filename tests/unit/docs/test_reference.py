"""The field reference is made from the models, and lacks none of their fields."""

from pathlib import Path

import pytest
import reference

from lmj_api.explain import entries, explain, paths

CHECKOUT = Path(__file__).resolve().parents[3]
FIELDS = CHECKOUT / "docs" / "fields.md"


def test_it_is_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check", str(FIELDS)]) == 0, capsys.readouterr().err


def test_a_stale_one_is_an_error_and_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fields.md"
    file.write_text("old\n")
    assert reference.main(["--check", str(file)]) == 1
    assert "make reference" in capsys.readouterr().err
    assert reference.main([str(file)]) == 0
    assert reference.main(["--check", str(file)]) == 0


def test_every_field_is_there_once() -> None:
    lines = FIELDS.read_text().splitlines()
    sections = {line.removeprefix("## ") for line in lines if line.startswith("## ")}
    for path in paths():
        rows = [line for line in lines if line.startswith(f"| `{path}` |")]
        assert len(rows) == (0 if path in sections else 1), path


@pytest.mark.parametrize("path", ["", "model.scratch", "pipeline", "placement.stages[].stage", "training.threads"])
def test_entries_say_what_explain_says(path: str) -> None:
    (entry,) = [each for each in entries() if each.path == path]
    told = explain(path)
    assert told[0].endswith(f": {entry.about}")
    assert [line.split(": ", 1)[1].rstrip(".") for line in told if line.startswith(("  Rule: ", "  On a cluster: "))] == [
        rule.removeprefix("On a cluster: ") for rule in entry.rules
    ]
