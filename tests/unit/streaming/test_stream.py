"""Rows in the order of the seed, from wherever one begins, and the index that a run began with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec, LiveMigrationJob
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.windowed import Window
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.streaming import pin as pin_module
from lmj_trainer.streaming.pin import index_of, kept_index
from lmj_trainer.streaming.stream import Stream
from lmj_trainer.streaming.windows import Tables

from .conftest import Bucket, Specs, parquet_of, rows, silent


def stream(spec: JobSpec, bucket: Bucket, used: int = 1 << 40) -> Stream:
    index = index_of(spec, silent, patience=0, open_=bucket.open)
    return Stream(spec, index, lambda epoch: used if epoch < 2 else 0, silent, open_=bucket.open)


def texts(found: Rows) -> list[str]:
    return [text for column in found.texts for text in column.to_pylist()]


def test_an_epoch_has_each_row_once_with_its_label_and_its_place(spec: Specs, bucket: Bucket) -> None:
    found = stream(spec(), bucket).rows(0, 0, 17)
    assert sorted(texts(found)) == sorted(f"row {number}" for number in range(17))
    for place, text in enumerate(texts(found)):
        number = int(text.removeprefix("row "))
        assert found.labels[place] == "pn"[number % 2]
        file, row = ("a", number + 1) if number < 10 else ("b", number - 9)
        assert found.where(place) == f"row {row} of s3://rows/train/{file}.parquet"
    some = found.take([3, 1])
    assert [some.where(0), some.where(1)] == [found.where(3), found.where(1)]
    assert found.spread(["x", "y"], [2, 2]).where(1) == found.where(2)


@settings(max_examples=25)
@given(st.data(), st.integers(1, 6))
def test_rows_of_any_place_are_those_of_the_whole_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, row_groups: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    for name, first in (("a", 0), ("b", 10)):
        (folder / f"{name}.parquet").write_bytes(parquet_of(rows(first, 10 if first == 0 else 7)))
    job = _spec(folder, row_groups)
    index = index_of(job, silent)
    whole = [texts(Stream(job, index, lambda epoch: 17, silent).rows(epoch, 0, 17)) for epoch in range(2)]
    assert whole[0] != whole[1]
    epoch = data.draw(st.integers(0, 1))
    first = data.draw(st.integers(0, 16))
    count = data.draw(st.integers(1, 17 - first))
    other = Stream(job, index, lambda epoch: 17, silent)
    assert texts(other.rows(epoch, first, count)) == whole[epoch][first : first + count]
    assert texts(other.rows(1 - epoch, 0, 17)) == whole[1 - epoch]


def _spec(folder: Path, row_groups: int) -> JobSpec:
    dataset = {"source": str(folder), "text": ["text"], "label": "label", "streaming": {"rowGroups": row_groups}}
    parts = {"model": {"source": "some/model", "labels": ["n", "p"]}, "dataset": dataset, "output": {"path": str(folder / "out")}}
    return LiveMigrationJob.model_validate({"metadata": {"name": "x"}, "spec": parts}).spec


def test_what_comes_next_is_read_ahead_and_what_training_never_needs_is_not(spec: Specs, bucket: Bucket) -> None:
    def read(one: Stream, epoch: int, first: int, count: int) -> tuple[int, int] | None:
        one.rows(epoch, first, count)
        reading = one._windows._reading
        return None if reading is None else (reading.window.epoch, reading.window.number)

    one = stream(spec(), bucket)
    assert read(one, 0, 0, 1) == (0, 1)
    assert read(one, 0, 0, 17) == (1, 0)
    assert read(one, 1, 16, 1) is None, "there is no third epoch"
    # As many rows as lie in the first window: what is left over of an epoch is read by nobody.
    first = one._order.begin(Window(0, 1))
    assert read(stream(spec(), bucket, used=first), 0, 0, 1) == (1, 0)
    assert read(stream(spec(), bucket, used=first + 1), 0, 0, 1) == (0, 1)


def test_expected_rows_are_read_before_anybody_waits(spec: Specs, bucket: Bucket) -> None:
    one = stream(spec(), bucket, used=16)
    one.expect(1, 3)
    reading = one._windows._reading
    assert reading is not None
    assert reading.window == one._order.at(1, 3)
    assert reading.answer.result(20)
    bucket.asked.clear()
    one.rows(1, 3, 1)
    assert one._windows._held is not None
    one.close()
    one.expect(0, 16)
    assert one._windows._reading is None, "training does not use it"


def test_the_index_is_kept_and_nobody_is_asked_again(spec: Specs, bucket: Bucket) -> None:
    assert kept_index(spec()) is None
    index = index_of(spec(), silent, open_=bucket.open)
    bucket.asked.clear()
    bucket.put("train/c.parquet", [parquet_of(rows(17, 3))])
    assert index_of(spec(), silent, open_=bucket.open) == kept_index(spec()) == index
    assert not bucket.asked
    assert kept_index(spec(label="other")) is None, "other columns are other sizes"


def test_room_is_what_the_job_gives_now(spec: Specs) -> None:
    long = [{"text": f"{number:06}" * 2000, "label": "p"} for number in range(100)]
    bucket = Bucket(**{"train/a.parquet": parquet_of(long, 50, compression="none", use_dictionary=False)})
    index = index_of(spec(streaming={"rowGroups": 2, "memoryMb": 3}), silent, open_=bucket.open)
    with pytest.raises(UserError, match=r"raise memoryMb"):
        index_of(spec(streaming={"rowGroups": 2, "memoryMb": 1}), silent, open_=bucket.open)
    assert index_of(spec(streaming={"rowGroups": 1, "memoryMb": 2}), silent, open_=bucket.open) == index


def test_what_is_kept_and_cannot_be_read_is_told(spec: Specs, bucket: Bucket) -> None:
    index_of(spec(), silent, open_=bucket.open)
    (path,) = Layout.of(spec()).fetched.glob("*/index.json")
    for content in (b"{", b"{}", b'{"format": 1}', b'{"format": 1, "source": "", "names": null, "files": [{}]}'):
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=r"index.json cannot be read .*: remove its folder, and the files are looked at again"
        ):
            kept_index(spec())


def test_storage_that_does_not_answer_is_asked_again_for_some_time(spec: Specs, bucket: Bucket) -> None:
    def fail(what: str, key: str) -> None:
        raise OSError("no answer")

    bucket.fail = fail
    with pytest.raises(OutageError, match=r"no answer"):
        index_of(spec(), silent, patience=0, open_=bucket.open)
    assert not list(Layout.of(spec()).fetched.glob("*")), "neither an index, nor a lease"


def test_a_place_where_nothing_can_be_kept(spec: Specs, bucket: Bucket) -> None:
    folder = Layout.of(spec()).fetched
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    with pytest.raises(UserError, match=r"cannot be written: .*: make room there, or choose another output.path"):
        index_of(spec(), silent, open_=bucket.open)


def test_machines_without_a_common_volume_have_to_find_the_same_rows(
    spec: Specs, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed: dict[str, str] = {}
    monkeypatch.setattr(pin_module, "agreed", lambda results, what, content: agreed.setdefault(f"{results} {what}", content))
    wanted = spec(output={"path": "s3://rows/out", "scratch": str(tmp_path / "scratch")})
    index = index_of(wanted, silent, open_=bucket.open)
    assert agreed == {"s3://rows/out dataset.source s3://rows/train": index.digest}
    agreed["s3://rows/out dataset.source s3://rows/train"] = "another"
    with pytest.raises(UserError, match=r"is not what the run began with: put it back, or choose another output.path"):
        index_of(wanted, silent, open_=bucket.open)
    assert kept_index(wanted) is None, "when it is put back, it is found"


def test_however_many_windows_a_step_has_its_rows_are_waited_for_once(spec: Specs, bucket: Bucket) -> None:
    one, since = stream(spec(), bucket), list[float | None]()
    hold = one._windows.hold

    def told(window: Window, check: Callable[[], None], begun: float | None = None) -> Tables:
        since.append(begun)
        return hold(window, check, begun)

    one._windows.hold = told  # type: ignore[method-assign]
    one.rows(0, 0, 17)
    assert len(since) == 3
    assert since[0] is not None
    assert len(set(since)) == 1
