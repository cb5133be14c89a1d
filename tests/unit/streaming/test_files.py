"""Row groups are read by their ranges, as they were found at first, and take no more memory than they may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from lmj_trainer.beside import beside
from lmj_trainer.errors import UserError
from lmj_trainer.streaming import files as files_module
from lmj_trainer.streaming.files import Files
from lmj_trainer.streaming.index import Index
from lmj_trainer.streaming.source import Source
from lmj_trainer.streaming.survey import survey

from .conftest import Bucket, Specs, parquet_of, rows, silent

PLENTY = 1e9
SECONDS = 20.0


def index_of(spec: Any, bucket: Bucket) -> Index:
    return survey(spec, Source.open(spec.dataset.source, bucket.open), silent)


def opened(spec: Any, bucket: Bucket, index: Index | None = None) -> Files:
    return Files(Source.open(spec.dataset.source, bucket.open), index or index_of(spec, bucket), ["text"], "label")


def texts(table: Any) -> list[str]:
    assert table.column_names == ["text", "label"]
    found: list[str] = table["text"].to_pylist()
    return found


def test_a_row_group_is_read_by_its_ranges_and_nothing_else(spec: Specs) -> None:
    wide = [{"text": f"row {n}", "blob": bytes(20_000), "label": "p"} for n in range(12)]
    content = parquet_of(wide, 4, compression="none", use_dictionary=False)
    bucket = Bucket(**{"train/a.parquet": content})
    files = opened(spec(), bucket)
    bucket.asked.clear()
    assert texts(files.read(0, 1, PLENTY)) == ["row 4", "row 5", "row 6", "row 7"]
    assert texts(files.read(0, 2, PLENTY)) == ["row 8", "row 9", "row 10", "row 11"]
    asked = [what for what, _ in bucket.asked]
    assert asked.count("get") == 1, "the footer, once"
    assert asked.count("fill") == 4, "each column of each group: another lies between them"
    assert bucket.largest < 1000


def test_columns_that_lie_side_by_side_are_one_request(spec: Specs) -> None:
    table = pa.Table.from_pylist(rows(0, 8)).select(["text", "label"])
    bucket = Bucket(**{"train/a.parquet": parquet_of(table)})
    files = opened(spec(), bucket)
    bucket.asked.clear()
    assert texts(files.read(0, 1, PLENTY)) == ["row 4", "row 5", "row 6", "row 7"]
    assert [what for what, _ in bucket.asked].count("fill") == 1


@pytest.mark.parametrize(
    "options", [{"compression": "zstd"}, {"compression": "none"}, {"data_page_version": "2.0"}, {"use_dictionary": False}]
)
def test_whatever_wrote_it(spec: Specs, options: dict[str, Any]) -> None:
    bucket = Bucket(**{"train/a.parquet": parquet_of(rows(0, 3000), 1000, data_page_size=500, **options)})
    files = opened(spec(), bucket)
    assert [text for group in range(3) for text in texts(files.read(0, group, PLENTY))] == [f"row {n}" for n in range(3000)]


def test_lists_of_words_and_conversations(spec: Specs) -> None:
    talk = [[{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "ho"}] for n in range(6)]
    bucket = Bucket(**{"train/a.parquet": parquet_of([{"text": each, "more": 1, "label": "p"} for each in talk])})
    table = opened(spec(), bucket).read(0, 1, PLENTY)
    assert table["text"].to_pylist() == talk[4:]


def test_a_file_that_is_another_one_by_now_is_refused(spec: Specs, bucket: Bucket) -> None:
    index, same = index_of(spec(), bucket), bucket.get("train/a.parquet")
    again = "is not what the run began with: put that back, or begin another run with another output.path"
    bucket.put("train/a.parquet", [parquet_of(rows(1, 10))])
    with pytest.raises(UserError, match=rf"^s3://rows/train/a.parquet {again}$"):
        opened(spec(), bucket, index).read(0, 0, PLENTY)
    # Of the same size and with the same footer, but the store says that it is another.
    bucket.put("train/a.parquet", [same])
    assert texts(opened(spec(), bucket, index).read(0, 0, PLENTY))
    bucket.tags["train/b.parquet"] = "first"
    tagged = index_of(spec(), bucket)
    bucket.tags["train/b.parquet"] = "second"
    with pytest.raises(UserError, match=again):
        opened(spec(), bucket, tagged).read(1, 0, PLENTY)
    bucket.delete("train/b.parquet")
    with pytest.raises(UserError, match=r"b.parquet is not there any more: put back what the run began with"):
        opened(spec(), bucket, index).read(1, 0, PLENTY)


def test_a_file_that_is_replaced_while_it_is_open_is_noticed(spec: Specs, bucket: Bucket) -> None:
    bucket.tags["train/a.parquet"] = "first"
    files = opened(spec(), bucket)
    files.read(0, 0, PLENTY)

    def replace(what: str, key: str) -> None:
        if what == "fill":
            bucket.tags[key] = "another"

    bucket.fail = replace
    with pytest.raises(UserError, match=r"is not what the run began with"):
        files.read(0, 1, PLENTY)


def test_after_an_error_it_is_looked_at_again(spec: Specs, bucket: Bucket) -> None:
    files = opened(spec(), bucket)
    files.read(0, 0, PLENTY)
    bucket.put("train/a.parquet", [b"PAR1"])
    with pytest.raises(OSError, match=r"ends|no range"):
        files.read(0, 2, PLENTY)
    with pytest.raises(UserError, match=r"is not what the run began with"):
        files.read(0, 2, PLENTY)


def test_a_volume_that_was_restored_has_other_times_and_the_same_rows(spec: Specs, bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bucket.get("train/a.parquet"))
    wanted = spec(str(path))
    index = index_of(wanted, bucket)
    path.rename(tmp_path / "old")
    path.write_bytes(bucket.get("train/a.parquet"))
    assert len(opened(wanted, bucket, index).read(0, 0, PLENTY)) == 4


def test_only_so_many_footers_are_kept(spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(**{f"train/{n}.parquet": parquet_of(rows(4 * n, 4)) for n in range(6)})
    files = opened(spec(), bucket)
    monkeypatch.setattr(files_module, "_OPEN", 2)
    for number in (0, 1, 0, 2, 0, 1):
        files.read(number, 0, PLENTY)
        assert len(files._opened) <= 2
    bucket.asked.clear()
    files.read(0, 0, PLENTY)
    assert ("get", "train/0.parquet") not in bucket.asked, "it was used last but one"


def test_what_becomes_more_than_it_says_is_read_no_further(spec: Specs) -> None:
    """A dictionary of one long text, and many rows that have it: some kilobytes in the file, and a hundred megabytes in memory."""
    table = pa.table({"text": pa.array(["a" * 10_000] * 10_000), "label": pa.array(["p"] * 10_000)})
    content = parquet_of(table, 10_000)
    assert len(content) < 20_000
    files = opened(spec(), Bucket(**{"train/a.parquet": content}))
    before = pa.total_allocated_bytes()
    with pytest.raises(
        UserError, match=r"row group 0 of .*a.parquet takes more memory than it says, .*: raise dataset.streaming.memoryMb"
    ):
        files.read(0, 0, 5e6)
    assert pa.total_allocated_bytes() - before < 20e6
    assert len(files.read(0, 0, 200e6)) == 10_000


def test_bytes_that_are_broken_are_told_with_their_place(spec: Specs) -> None:
    content = bytearray(parquet_of(rows(0, 400), 100, write_page_checksum=True))
    bucket = Bucket(**{"train/a.parquet": bytes(content)})
    index = index_of(spec(), bucket)
    metadata = parquet.read_metadata(pa.BufferReader(bytes(content)))
    place = metadata.row_group(2).column(0).data_page_offset
    content[place + 60] ^= 0xFF
    bucket.put("train/a.parquet", [bytes(content)])
    files = opened(spec(), bucket, index)
    assert len(files.read(0, 1, PLENTY)) == 100
    with pytest.raises(UserError, match=r"row group 2 of s3://rows/train/a.parquet cannot be read: ") as raised:
        files.read(0, 2, PLENTY)
    assert str(raised.value).isprintable()


FILE = parquet_of(rows(0, 20), 5)
FOOTER = int.from_bytes(FILE[-8:-4], "little") + 8


@settings(max_examples=80)
@given(st.integers(4, len(FILE) - FOOTER - 1), st.binary(min_size=1, max_size=20))
def test_any_rows_are_read_or_refused(place: int, new: bytes) -> None:
    """The footer is as it was: what is wrong is found when the rows are read."""
    content = FILE[:place] + new + FILE[place + len(new) :]
    bucket = Bucket(**{"a.parquet": FILE[: len(FILE) - FOOTER]})
    bucket.put("a.parquet", [(content[: len(FILE) - FOOTER] + FILE[len(FILE) - FOOTER :])])
    ref = bucket.open("s3://rows") / "a.parquet"
    footer = files_module.read_footer(ref, len(FILE), ["text"], "label", "a.parquet")
    for group in range(4):
        parts = files_module._Parts(len(FILE))
        for start, length in footer.groups[group].ranges:
            parts.add(start, bytearray(ref.get(start, length)))
        said = ""
        try:
            assert files_module._decoded(parts, footer, group, ["text", "label"], PLENTY, "a.parquet").num_rows == 5
        except UserError as error:
            said = str(error)
        assert said.isprintable()


def test_a_file_of_the_same_size_is_known_by_its_footer(spec: Specs, bucket: Bucket) -> None:
    index = index_of(spec(), bucket)
    other = parquet_of([{**row, "text": row["text"].replace("row", "raw")} for row in rows(0, 10)])
    assert len(other) == index.files[0].size
    bucket.put("train/a.parquet", [other])
    with pytest.raises(UserError, match=r"a.parquet is not what the run began with"):
        opened(spec(), bucket, index).read(0, 0, PLENTY)


def test_a_file_that_was_written_while_it_was_open_is_opened_anew(spec: Specs, bucket: Bucket) -> None:
    """A volume that was restored under a job that trains has other times, and may have the same rows."""
    files, same = opened(spec(), bucket), bucket.get("train/a.parquet")
    files.read(0, 0, PLENTY)
    bucket.put("train/a.parquet", [same])
    with pytest.raises(OSError, match=r"^s3://rows/train/a.parquet was written while it was read$"):
        files.read(0, 1, PLENTY)
    assert texts(files.read(0, 1, PLENTY)) == ["row 4", "row 5", "row 6", "row 7"]
    other = parquet_of([{**row, "text": row["text"].replace("row", "raw")} for row in rows(0, 10)])
    assert len(other) == len(same)
    bucket.put("train/a.parquet", [other])
    with pytest.raises(OSError, match=r"was written while it was read"):
        files.read(0, 1, PLENTY)
    with pytest.raises(UserError, match=r"is not what the run began with"):
        files.read(0, 1, PLENTY)


def test_a_folder_that_has_the_name_of_a_file_is_another_one(spec: Specs, bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(bucket.get("train/a.parquet"))
    wanted = spec(str(path))
    index = index_of(wanted, bucket)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"a.parquet is not what the run began with"):
        opened(wanted, bucket, index).read(0, 0, PLENTY)


def test_categories_take_the_memory_of_their_texts(spec: Specs) -> None:
    """Each part that is decoded has the whole dictionary: it is not as many times there."""
    long = [f"{number:04}" * 500 for number in range(400)]
    table = pa.table({"text": pa.array(long).dictionary_encode(), "label": pa.array(["p"] * 400).dictionary_encode()})
    bucket = Bucket(**{"train/a.parquet": parquet_of(table, 400)})
    found = opened(spec(), bucket).read(0, 0, 1.2e6)
    assert texts(found) == long
    assert found["label"].to_pylist() == ["p"] * 400


def test_no_more_rows_are_decoded_at_a_time_than_there_is_room_for(spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"text": pa.array(["a" * 100_000] * 1000), "label": pa.array(["p"] * 1000)})
    files = opened(spec(), Bucket(**{"train/a.parquet": parquet_of(table, 1000)}))
    sizes, decode = list[int](), parquet.ParquetFile.iter_batches

    def watched(file: Any, *given: Any, **more: Any) -> Iterator[Any]:
        for batch in decode(file, *given, **more):
            sizes.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    for room in (1e6, 1e3):
        with pytest.raises(UserError, match=r"takes more memory than it says"):
            files.read(0, 0, room)
    assert max(sizes) <= 1e6


def test_one_thread_reads_at_a_time(spec: Specs, bucket: Bucket) -> None:
    files, begun, go = opened(spec(), bucket), threading.Event(), threading.Event()

    def hang(what: str, key: str) -> None:
        if what == "fill" and not begun.is_set():
            begun.set()
            assert go.wait(SECONDS)

    bucket.fail = hang
    first = beside(lambda: files.read(0, 0, PLENTY), "first")
    assert begun.wait(SECONDS)
    bucket.asked.clear()
    second = beside(lambda: files.read(1, 0, PLENTY), "second")
    with pytest.raises(TimeoutError):
        second.result(0.1)
    assert not bucket.asked
    go.set()
    assert len(first.result(SECONDS)) == len(second.result(SECONDS)) == 4
