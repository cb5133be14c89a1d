"""``lmj init``: the file that it writes is a job that passes the check, whatever the columns and labels are called."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from lmj_operator.cli.load import read_job
from lmj_operator.cli.yaml_file import parse
from lmj_trainer import init
from lmj_trainer.check import check
from lmj_trainer.data.look import first_rows, guess, others_of
from lmj_trainer.errors import UserError

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[3] / "examples" / "data"


@pytest.mark.parametrize(
    ("name", "text", "label", "splits"),
    [
        ("reviews.csv", ["review"], "sentiment", {"train": 8100, "validation": 900, "test": 1500}),
        ("pairs.jsonl", ["question", "answer"], "label", {"train": 3200, "validation": 400, "test": 400}),
    ],
)
def test_the_examples_data_makes_jobs_that_pass_the_check(
    name: str, text: list[str], label: str, splits: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "job.yaml"
    assert init.main([str(DATA / name), "-o", str(target)]) == 0
    job = read_job(target, [])
    assert (job.spec.dataset.text, job.spec.dataset.label) == (text, label)
    assert job.spec.output.path == str(tmp_path / "runs" / Path(name).stem)
    assert check(job).rows == splits
    assert f"text: {', '.join(text)}, label: {label} (2: " in capsys.readouterr().out


ODD = ["no", "a: b", "# x", "x, y", "[z]", "ü\u2028ber", "5", "on", "'q'", '"d"', "emoji 🙂", " lead"]


def test_odd_names_of_columns_labels_and_files_are_read_back(tmp_path: Path) -> None:
    source = tmp_path / "no: #1.jsonl"
    rows = {"id": list(range(48)), "Text, long: #1": [f"some words {i}" for i in range(48)], "y": (ODD * 4)}
    source.write_text("".join(json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in zip(*rows.values(), strict=True)))
    target = tmp_path / "deeper" / "job.yaml"
    target.parent.mkdir()
    assert init.main([str(source), "-o", str(target)]) == 0
    job = read_job(target, [])
    assert (job.metadata.name, job.spec.dataset.source) == ("no-1", str(source))
    assert (job.spec.dataset.text, job.spec.dataset.label) == (["Text, long: #1"], "y")
    assert job.spec.model.labels == sorted(ODD)
    assert check(job).labels == sorted(ODD)


@given(
    st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable() or not any("\ud800" <= c <= "\udfff" for c in text))
)
def test_any_text_is_read_back_from_yaml(text: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text):
        return  # half a character: no file holds it
    assert parse(f"a: [{init._scalar(text)}]".encode()) == {"a": [text]}


@pytest.mark.parametrize("rows", [2, 5, 19, 20, 45, 1000])
def test_few_rows_make_a_job_too(rows: int, write: Any, tmp_path: Path) -> None:
    lines = "".join(f"text number {i},{'ab'[i % 2]}\n" for i in range(rows))
    target = tmp_path / "job.yaml"
    assert init.main([str(write("few.csv", "text,label\n" + lines)), "-o", str(target)]) == 0
    summary = check(read_job(target, []))
    assert summary.steps > 0
    assert ("test" in summary.rows) is (rows >= 20)


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ({"id": [1, 2, 3, 4], "body": ["a b", "c d", "e f", "g h"], "kind": ["x", "y", "x", "y"]}, ("body",), "kind"),
        (
            {"stars": ["1", "5", "1", "5"], "review": ["aa", "bb", "cc", "dd"], "who": ["me", "me", "you", "you"]},
            ("review",),
            "who",
        ),
        ({"a": ["u", "v", "u", "v"], "Label": ["u", "v", "v", "u"], "t": ["aa", "bb", "cc", "dd"]}, ("t",), "Label"),
        (
            {"question2": ["a", "b"], "question1": ["c", "d"], "is_duplicate": ["0", "1"], "note": ["long words", "more words"]},
            ("question1", "question2"),
            "is_duplicate",
        ),
    ],
)
def test_the_columns_are_guessed(columns: dict[str, list[Any]], text: tuple[str, ...], label: str) -> None:
    found = guess(columns, [], None, "a.csv")
    assert (found.text, found.label) == (text, label)


def test_columns_may_be_named(write: Any) -> None:
    columns = {"a": ["one two", "three"], "b": ["x", "y"], "c": ["p", "q"]}
    assert guess(columns, ["b", "c"], "a", "a.csv").text == ("b", "c")
    with pytest.raises(UserError, match=r"a.csv has no column 'bb'; did you mean b\?"):
        guess(columns, ["bb"], None, "a.csv")


def test_files_beside_it_are_its_other_parts(tmp_path: Path) -> None:
    for name in ("x-train.csv", "x-test.csv", "x-dev.csv", "x-test.tsv", "y.csv", "y_test.csv"):
        (tmp_path / name).touch()
    assert others_of(tmp_path / "x-train.csv") == {"validation": tmp_path / "x-dev.csv", "test": tmp_path / "x-test.csv"}
    assert others_of(tmp_path / "y.csv") == {"test": tmp_path / "y_test.csv"}


def test_a_parquet_file(tmp_path: Path) -> None:
    table = pa.table({"text": ["a b", "c d", "e f", "g h"], "label": [0, 1, 0, 1]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert first_rows(tmp_path / "a.parquet") == table.to_pydict()


@pytest.mark.parametrize(
    ("name", "content", "argv", "message"),
    [
        ("a.csv", "text,label\n", [], "has no rows"),
        ("a.csv", "", [], "has no rows"),
        ("a.csv", "n,m\n1,2\n3,4\n5,6\n7,8\n9,10\n", [], "looks like a label: name it with --label"),
        ("a.csv", "n,m\n1,2\n1,2\n2,2\n2,2\n", [], "looks like a text: name it with --text"),
        ("a.csv", "text,label\na b,x\nc d,X\ne f,x\ng h,y\n", [], "writes one label in 2 ways"),
        ("a.csv", "text;label\na;x\n", [], "are separated by semicolons"),
        ("a.csv", b"text,label\ncaf\xe9,x\n", [], "line 2: the byte 0xe9 is not UTF-8"),
        ("a.jsonl", "5\n", [], "each row has to be an object"),
        ("a.txt", "x", [], "a file of rows is needed"),
        ("a.csv", "text,label\na,x\nb,y\n", ["--name", "My Job"], "lower-case letters, digits"),
        ("a.csv", "text,label\na,x\nb,y\n", ["--text", "a", "b", "c"], "--text names 3 columns"),
    ],
)
def test_data_of_no_use_is_one_line_and_nothing_is_written(
    name: str, content: Any, argv: list[str], message: str, write: Any, tmp_path: Path
) -> None:
    target = tmp_path / "job.yaml"
    with pytest.raises(UserError, match=message) as caught:
        init.main([str(write(name, content)), "-o", str(target), *argv])
    assert "\n" not in str(caught.value)
    assert not target.exists()


def test_a_file_that_is_there_is_not_replaced(write: Any, tmp_path: Path, pretrained: Path) -> None:
    data, target = str(write("a.csv", "text,label\na b,x\nc d,y\n")), tmp_path / "job.yaml"
    target.write_text("mine")
    with pytest.raises(UserError, match="is there already: name another file with -o, or replace it with --force"):
        init.main([data, "-o", str(target)])
    assert target.read_text() == "mine"
    assert init.main([data, "-o", str(target), "--force", "--model", str(pretrained), "--name", "mine"]) == 0
    job = read_job(target, [])
    assert (job.metadata.name, job.spec.model.source) == ("mine", str(pretrained))
    assert check(job).layers == 6


def test_a_file_of_the_users_is_no_module_of_ours(write: Any, tmp_path: Path) -> None:
    write("csv.py", "raise SystemExit('not what was meant')\n")
    write("mine.csv", "text,label\na b,x\nc d,y\n")
    command = [sys.executable, "-P", "-m", "lmj_operator.cli.main", "init", "mine.csv"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert (tmp_path / "mine.yaml").is_file()
