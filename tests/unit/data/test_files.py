import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from lmj_trainer.data.rows import Rows
from lmj_trainer.data.source import DataSource, digest_path
from lmj_trainer.data.texts import check_texts
from lmj_trainer.errors import OutageError, UserError


def read(path: Path, split: str = "train", text: str = "text", label: str = "label") -> Rows:
    return DataSource(str(path)).read(split, [text], label, lambda line: None)


def texts(rows: Rows) -> list[str]:
    return list(rows.texts[0].to_pylist())


def test_kaggles_imdb_file(write: Any) -> None:
    path = write(
        "imdb.csv",
        'review,sentiment\n"He said ""no"",<br /><br />then\nleft, slowly",positive\n2020-01-01,negative\nNA,negative\n,positive\n',
    )
    rows = read(path, text="review", label="sentiment")
    assert texts(rows) == ['He said "no",<br /><br />then\nleft, slowly', "2020-01-01", "NA", ""]
    assert list(rows.labels) == ["positive", "negative", "negative", "positive"]


def test_a_byte_order_mark_and_other_columns_do_no_harm(write: Any) -> None:
    assert texts(read(write("a.csv", b"\xef\xbb\xbftext,other,label\na,1,x\nb,2,y\n"))) == ["a", "b"]


def test_tsv(write: Any) -> None:
    assert texts(read(write("a.tsv", "text\tlabel\na, b\t0\nc\t1\n"))) == ["a, b", "c"]


def test_json_lines(write: Any) -> None:
    rows = read(write("a.jsonl", [{"text": "a", "label": 1}, {"text": "", "label": "x", "more": []}]))
    assert texts(rows) == ["a", ""]
    assert list(rows.labels) == [1, "x"]


@pytest.mark.parametrize(
    "content", ['[{"text": "a", "label": 1}]', '{"data": [{"text": "a", "label": 1}]}', '{"text": "a", "label": 1}\n']
)
def test_json_as_a_list_as_a_list_in_an_object_and_as_lines(write: Any, content: str) -> None:
    assert texts(read(write("a.json", content))) == ["a"]


def test_parquet_with_the_label_names_that_datasets_leaves(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).to_parquet(str(tmp_path / "a.parquet"))
    rows = read(tmp_path / "a.parquet")
    assert rows.names == ("no", "yes")
    assert list(rows.labels) == [1, 0]


def test_a_null_text_is_named_by_its_row(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a", None], "label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"^row 2 of .*a.parquet has no text: column 'text' is null"):
        check_texts(read(tmp_path / "a.parquet"), print)


def test_saved_folders_with_and_without_splits(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]})
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data, "dev": data.select([1])}).save_to_disk(str(tmp_path / "many"))
    assert texts(read(tmp_path / "one")) == ["a", "b"]
    assert texts(read(tmp_path / "many", split="dev")) == ["b"]
    with pytest.raises(UserError, match=r"has no split 'dve'; did you mean dev\? \(splits: train, dev\)"):
        read(tmp_path / "many", split="dve")
    with pytest.raises(UserError, match=r"split train has no column 'lable'; did you mean label\? \(columns: text, label\)"):
        read(tmp_path / "many", label="lable")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "txt,label\na,b\n", r"has no column 'text'; did you mean txt\? \(columns: txt, label\)"),
        ("a.csv", "", "is empty"),
        ("a.csv", "text,label\n", "has no rows"),
        (
            "a.csv",
            'text,label\n"a\nb",c\n\nc,d,e\n',
            r"^row 2 of .* \(line 5\) has 3 fields, the header has 2: a text with a comma needs quotes$",
        ),
        ("a.csv", "text,label\na,b\nc\nd,e\n", r"^row 2 of .* \(line 3\) has 1 field, the header has 2: a comma is missing$"),
        (
            "a.csv",
            'text,label\nx,y\n"a,b\nc,d\n',
            r"^row 2 of .* \(line 3\) has 1 field, .*: a quote that begins there is never closed$",
        ),
        ("a.tsv", "text\tlabel\na\tb\tc\n", r"^row 1 of .* \(line 2\) has 3 fields, .*: a text with a tab needs quotes$"),
        (
            "a.csv",
            b"text,label\nok,b\ncaf\xe9,b\n",
            r"line 3: the byte 0xe9 is not UTF-8: save the file as UTF-8 \(in Windows-1252 it is 'é'; iconv",
        ),
        ("a.csv", "text,label\na,b\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("a.csv", "text;label\na;b\n", r"are separated by semicolons, not by what \.csv stands for: save it with commas"),
        ("a.csv", "text\tlabel\na\tb\n", r"are separated by tabs, not by what \.csv stands for: \.tsv is for tabs"),
        ("a.jsonl", b'{"text": "caf\xe9", "label": 1}\n', "line 1: the byte 0xe9 is not UTF-8"),
        ("a.jsonl", '{"text": "a", "label": 1, "text": "b"}\n', "line 1 of .*: the key 'text' is there twice in one object"),
        ("a.json", '[{"text": "a", "label": 1, "label": 2}]', "the key 'label' is there twice in one object"),
        ("a.csv", "text,text,label\na,b,c\n", "has two columns 'text'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "line 2 of .* is not JSON"),
        ("a.jsonl", "3\n", "row 1 of .* is not an object"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', "row 1 of .*: column 'text' is not a text, but 5"),
        ("a.jsonl", '{"txt": "a", "label": 1}\n', "has no column 'text'; did you mean txt"),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", b"\xff\xfe", "is UTF-16"),
        ("a.json", "", "is empty"),
        ("a.json", "[1", "cannot be read"),
        ("a.json", "3", "holds neither"),
        ("a.parquet", b"PAR1 no", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(write: Any, name: str, content: Any, message: str) -> None:
    path = write(name, content)
    with pytest.raises(UserError, match=message) as raised:
        read(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_parquet_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": [1, 2], "label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"column 'text' of .* holds int64, not text"):
        read(tmp_path / "a.parquet")


def test_sources_that_are_not_there(tmp_path: Path, write: Any) -> None:
    write("reviews.csv", "text,label\n")
    with pytest.raises(UserError, match=r"there is no file .*reviws.csv; did you mean reviews.csv\?"):
        DataSource(str(tmp_path / "reviws.csv"))
    with pytest.raises(UserError, match=r"there is no file or folder .*nothing"):
        DataSource(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"has no ending that is known: name it \.csv"):
        DataSource(str(write("data.txt", "a")))
    with pytest.raises(UserError, match="save_to_disk did not write"):
        read(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"is a folder, not a \.csv file"):
        DataSource(str(tmp_path / "folder.csv"))


def test_a_hub_dataset_without_a_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets.config
    import huggingface_hub.constants

    from lmj_trainer import hub

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # so that it is put back
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_set_here", False)  # so that it is put back
    with pytest.raises(
        OutageError, match="no dataset nobody/nothing: there is no such file or folder, the hub cannot be reached"
    ):
        DataSource("nobody/nothing").read("train", ["text"], "label", print)


def test_digests_follow_the_content(write: Any, tmp_path: Path) -> None:
    path = write("a.csv", "one")
    first = digest_path(path)
    path.write_text("two")
    assert digest_path(path) != first
    assert digest_path(tmp_path) != digest_path(tmp_path, only=["b"])
    path.write_text("one")
    assert digest_path(path) == first
    assert json.dumps(first)


def told(rows: Rows) -> list[str]:
    said: list[str] = []
    check_texts(rows, said.append)
    return said


@pytest.mark.parametrize("blank", ["", "  ", "\u00a0"])
def test_an_empty_text_in_a_file_is_a_missing_one(write: Any, blank: str) -> None:
    path = write("a.csv", f"text,label\na,x\n{blank},y\n{blank},y\n")
    with pytest.raises(
        UserError, match=r"^row 2 of .*a.csv has an empty text in column 'text' \(2 rows in all\); remove such rows"
    ):
        told(read(path))


def test_an_empty_text_of_a_dataset_that_others_made_is_a_warning(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a", ""], "label": ["x", "y"]}).save_to_disk(str(tmp_path / "one"))
    assert told(read(tmp_path / "one")) == [
        f"warning: row 2 of {tmp_path / 'one'}, split train has an empty text in column 'text'"
    ]


@pytest.mark.parametrize("mark", ["NaN", "nan", "NULL", "<NA>"])
def test_a_text_that_marks_a_missing_value_is_a_warning(write: Any, mark: str) -> None:
    path = write("a.jsonl", [{"text": text, "label": "x"} for text in ("a", mark, "a nan in words", "None", "NA")])
    said = f"warning: row 2 of {path} has the text {mark!r} in column 'text', which marks a missing value; if it is one, "
    assert told(read(path)) == [said + "remove such rows or fill them in"]
