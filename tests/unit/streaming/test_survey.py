"""What is known of the files before any row is read, and what is refused then."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.store.port import NotAFileError, RefusedError, RenewableError
from lmj_trainer.streaming import footer as footer_module
from lmj_trainer.streaming import source as source_module
from lmj_trainer.streaming import survey as survey_module
from lmj_trainer.streaming.index import File, Index
from lmj_trainer.streaming.source import Source
from lmj_trainer.streaming.survey import survey

from .conftest import Bucket, Specs, parquet_of, rows, silent


def look(spec: Any, bucket: Bucket) -> Index:
    return survey(spec, Source.open(spec.dataset.source, bucket.open), silent)


def refusal(spec: Any, bucket: Bucket, kind: type[Exception] = UserError) -> str:
    with pytest.raises(kind) as raised:
        look(spec, bucket)
    said = str(raised.value)
    assert said.isprintable()
    assert len(said) < 700
    return said


def test_rows_are_counted_by_footers_alone(spec: Specs, bucket: Bucket) -> None:
    index = look(spec(), bucket)
    assert [(file.name, file.rows) for file in index.files] == [("a.parquet", (4, 4, 2)), ("b.parquet", (4, 3))]
    assert index.groups == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert index.counts.tolist() == [4, 4, 2, 4, 3]
    assert index.firsts.tolist() == [1, 5, 9, 1, 5]
    assert index.rows == 17
    assert {what for what, _ in bucket.asked} <= {"entry", "get"}
    assert sum(what == "get" for what, _ in bucket.asked) == 2, "a small footer is one request"


def test_a_footer_that_is_longer_than_what_was_asked_for_is_asked_for(
    spec: Specs, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = look(spec(), bucket)
    monkeypatch.setattr(footer_module, "_TAIL", 16)
    assert look(spec(), bucket) == whole


def test_an_index_comes_back_from_what_is_kept(spec: Specs, bucket: Bucket) -> None:
    index = look(spec(), bucket)
    again = Index.from_json(index.to_json())
    assert again == index
    assert again.digest == index.digest
    with pytest.raises(ValueError, match="format 2"):
        Index.from_json(index.to_json().replace(b'"format": 1', b'"format": 2'))


def test_the_digest_is_of_the_rows_and_not_of_where_they_lie(spec: Specs, bucket: Bucket) -> None:
    there = look(spec(), bucket)
    bucket.tags = {"train/a.parquet": "another"}
    bucket.put("moved/a.parquet", [bucket.get("train/a.parquet")])
    bucket.put("moved/b.parquet", [bucket.get("train/b.parquet")])
    assert look(spec("s3://rows/moved"), bucket).digest == look(spec(), bucket).digest == there.digest
    bucket.put("moved/b.parquet", [parquet_of(rows(11, 7))])
    assert look(spec("s3://rows/moved"), bucket).digest != there.digest


def test_a_file_alone_folders_in_folders_and_what_programs_leave_beside(spec: Specs, bucket: Bucket) -> None:
    assert [file.name for file in look(spec("s3://rows/train/a.parquet"), bucket).files] == [""]
    for name in ("2024/c.parquet", "_SUCCESS", "_metadata", ".hidden.parquet", "_temporary/d.parquet", "README.md", "info.json"):
        bucket.put(f"train/{name}", [parquet_of(rows(17, 3))])
    assert [file.name for file in look(spec(), bucket).files] == ["2024/c.parquet", "a.parquet", "b.parquet"]


def test_a_folder_of_this_machine_and_links_in_it(spec: Specs, tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "train").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(bucket.get("train/a.parquet"))
    (tmp_path / "train" / "a.parquet").symlink_to("../blobs/1")
    (tmp_path / "train" / "b.parquet").write_bytes(bucket.get("train/b.parquet"))
    index = look(spec(str(tmp_path / "train")), bucket)
    assert index.digest == look(spec(), bucket).digest
    assert refusal(spec(str(tmp_path / "trian")), bucket) == f"there is no file {tmp_path / 'trian'}; did you mean train?"
    (tmp_path / "rows.txt").write_text("rows")
    assert "rows.txt: is no .parquet file: streaming reads Parquet" in refusal(spec(str(tmp_path / "rows.txt")), bucket)


def test_empty_row_groups_are_none(spec: Specs) -> None:
    bucket = Bucket(
        **{"train/a.parquet": parquet_of(pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}))}
    )
    assert refusal(spec(), bucket) == "dataset.source s3://rows/train: has no rows"
    bucket.put("train/b.parquet", [parquet_of(rows(0, 5))])
    index = look(spec(), bucket)
    assert (index.groups, index.counts.tolist()) == ([(1, 0), (1, 1)], [4, 1])


def test_names_of_labels_are_those_of_all_files(spec: Specs, bucket: Bucket) -> None:
    feature = b'{"info": {"features": {"label": {"names": ["n", "p"], "_type": "ClassLabel"}}}}'
    table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata({b"huggingface": feature})
    named = Bucket(**{"train/a.parquet": parquet_of(table)})
    assert look(spec(), named).names == ("n", "p")
    named.put("train/b.parquet", [parquet_of(table.replace_schema_metadata(None))])
    assert "train/b.parquet has other types of columns, or other names of labels, than s3://rows/train/a.parquet" in refusal(
        spec(), named
    )


@pytest.mark.parametrize(
    ("files", "dataset", "said"),
    [
        ({}, {}, "dataset.source s3://rows/train: there is no such file or folder"),
        (
            {"train/a.txt": b"x"},
            {},
            "dataset.source s3://rows/train: has no .parquet file: streaming reads Parquet by row groups: write",
        ),
        (
            {"train/a.csv": b"x", "train/b.parquet": b""},
            {},
            "has a.csv, which is no Parquet file: streaming reads Parquet by row groups",
        ),
        ({"train/a.parquet": b"PAR1"}, {}, "a.parquet is no Parquet file: it has 4 bytes"),
        ({"train/a.parquet": b"x" * 100}, {}, "a.parquet is no Parquet file, or not all of it: it does not end as one"),
        ({"train/a.parquet": b"x" * 100 + b"PARE"}, {}, "a.parquet is encrypted: write it without"),
        ({"train/a.parquet": b"x" * 100 + struct.pack("<I", 97) + b"PAR1"}, {}, "its footer is longer than the file"),
        (
            {"train/a.parquet": b"x" * 100 + struct.pack("<I", 1 << 30) + b"PAR1"},
            {},
            "says that its footer has 1074 MB, and 17 are read: write larger row groups, or several files",
        ),
        ({"train/a.parquet": b"x" * 100 + struct.pack("<I", 90) + b"PAR1"}, {}, "a.parquet cannot be read: "),
        ({"train/a.parquet": parquet_of(rows(0, 3))}, {"label": "lable"}, "a.parquet has no column 'lable'; did you mean label?"),
        (
            {"train/a.parquet": parquet_of(rows(0, 3))},
            {"text": ["more"]},
            "column 'more' of s3://rows/train/a.parquet holds int64, not text",
        ),
        (
            {"train/a.parquet": parquet_of(rows(0, 3)), "train/b.parquet": parquet_of([{"text": ["a"], "label": "p"}])},
            {},
            "b.parquet has other types of columns, or other names of labels, than s3://rows/train/a.parquet: write all files alike",
        ),
        ({"train/a\n.parquet": b""}, {}, "which cannot be shown: rename it"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_stream_is_told_in_a_line(spec: Specs, files: dict[str, bytes], dataset: dict[str, Any], said: str) -> None:
    assert said in refusal(spec(**dataset), Bucket(**files))


def test_two_columns_of_a_name(spec: Specs) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", "text", "label"])
    assert "a.parquet has two columns 'text'; rename one" in refusal(spec(), Bucket(**{"train/a.parquet": parquet_of(table)}))


def test_what_needs_more_memory_than_there_is_is_told_with_what_to_do(spec: Specs) -> None:
    long = [{"text": f"{number:06}" * 2000, "label": "p"} for number in range(100)]
    file = parquet_of(long, 50, compression="none", use_dictionary=False)
    bucket = Bucket(**{"train/a.parquet": file, "train/b.parquet": file})
    said = refusal(spec(streaming={"rowGroups": 2, "memoryMb": 1}), bucket)
    assert "2 row groups may take 1.2 MB, and a rank has room for 0.5 MB (half of dataset.streaming.memoryMb)" in said
    assert "lower dataset.streaming.rowGroups, raise memoryMb, or write smaller row groups (row_group_size=20)" in said
    look(spec(streaming={"rowGroups": 2, "memoryMb": 3}), bucket)
    assert "a rank has room for" in refusal(spec(streaming={"rowGroups": 4, "memoryMb": 3}), bucket), "as many as a window has"
    smaller = Bucket(**{"train/a.parquet": parquet_of(long, 20, compression="none", use_dictionary=False)})
    look(spec(streaming={"rowGroups": 2, "memoryMb": 1}), smaller)


def test_rows_that_cost_nothing_cost_what_their_order_takes(spec: Specs) -> None:
    table = pa.table({"text": pa.nulls(400_000, pa.string()), "label": pa.nulls(400_000, pa.string())})
    bucket = Bucket(**{"train/a.parquet": parquet_of(table, 400_000)})
    assert "row_group_size=" in refusal(spec(streaming={"rowGroups": 1, "memoryMb": 10}), bucket)
    look(spec(streaming={"rowGroups": 1, "memoryMb": 20}), bucket)


def test_counts_that_no_machine_has_are_refused_and_not_added_up_beyond_what_a_number_holds(spec: Specs) -> None:
    index = Index("s3://rows/train", (File("a.parquet", 100, "", "0", (1 << 62, 1 << 62), (1, 1)),), None)
    streaming = spec().dataset.streaming
    assert streaming is not None
    with pytest.raises(UserError, match=r"row groups may take [0-9.]+ MB"):
        index.require_room(streaming)


def test_too_many_files_or_row_groups_or_folders(spec: Specs, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "MOST_GROUPS", 4)
    assert refusal(spec(), bucket).endswith("has more than 4 row groups: write larger ones")
    monkeypatch.setattr(source_module, "MOST_FILES", 1)
    assert refusal(spec(), bucket).endswith("has more than 1 files: write fewer and larger ones")
    deep = Bucket(**{f"train/{'/'.join('abcdefghijklmnopqrst')}/a.parquet": b""})
    assert "more than 16 deep" in refusal(spec(), deep)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError("no answer"), OutageError, "no answer"),
        (RefusedError("s3://rows: AccessDenied"), UserError, "give credentials that may read it (checkpoint.secretName"),
        (RenewableError.of("s3://rows: ExpiredToken", "keys"), OutageError, "renew the Secret keys"),
        (FileNotFoundError("s3://rows/train/a.parquet"), OutageError, "went away while it was looked at"),
        (NotAFileError("s3://rows/train/a.parquet"), UserError, "train/a.parquet: is no file: put a Parquet file there"),
    ],
)
@pytest.mark.parametrize("what", ["entry", "get"])
def test_what_storage_does_not_give(
    spec: Specs, bucket: Bucket, what: str, error: OSError, kind: type[Exception], said: str
) -> None:
    def fail(asked: str, key: str) -> None:
        if asked == what and key.endswith("a.parquet"):
            raise error

    bucket.fail = fail
    assert said in refusal(spec(), bucket, kind)


FILE = parquet_of(rows(0, 20), 5)
SPLICE = st.tuples(st.floats(0, 1), st.integers(0, 16), st.binary(max_size=16))


@settings(max_examples=150)
@given(st.lists(SPLICE, min_size=1, max_size=4))
@example([(0.0, len(FILE), b"")])
def test_any_bytes_are_read_or_refused(splices: list[tuple[float, int, bytes]]) -> None:
    content = FILE
    for where, gone, new in splices:
        place = round(where * len(content))
        content = content[:place] + new + content[place + gone :]
    bucket = Bucket(**{"a.parquet": content})
    said = ""
    try:
        footer_module.read_footer(bucket.open("s3://rows") / "a.parquet", len(content), ["text"], "label", "a.parquet")
    except UserError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 700


def test_columns_that_would_lie_in_the_footer_are_refused(spec: Specs) -> None:
    """Bytes of the rows are missing, and the footer is whole."""
    said = refusal(spec(), Bucket(**{"train/a.parquet": FILE[:40] + FILE[140:]}))
    assert "a.parquet is broken: row group 3 says that column " in said
    assert said.endswith(" is where the file has no rows")


def test_links_to_folders_are_not_passed_over(spec: Specs, tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.parquet").write_bytes(bucket.get("train/b.parquet"))
    train = tmp_path / "train"
    train.mkdir()
    (train / "a.parquet").write_bytes(bucket.get("train/a.parquet"))
    (train / "..data").symlink_to("../elsewhere")  # as Kubernetes has it in some volumes
    (train / "more").symlink_to("../elsewhere")
    said = refusal(spec(str(train)), bucket)
    assert said == f"dataset.source {train}: has more, a link to a folder: put the folder there itself"
    (train / "more").rename(train / "more.parquet")
    said = refusal(spec(str(train)), bucket)
    assert f"{train}/more.parquet: is no file: put a Parquet file there, or give what is there another ending" in said
    (train / "more.parquet").unlink()
    assert [file.name for file in look(spec(str(train)), bucket).files] == ["a.parquet"]
