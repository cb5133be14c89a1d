"""What a job has of object storage: fetched once, whole, and never anywhere else than in its folder."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.memory import MemoryStore

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer import fetched
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.dataset.prepared import prepared_digest
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetched import PART, as_named, borrowed, fetch, local, places_of, trying
from lmj_trainer.hub import patiently
from lmj_trainer.store.port import Entry, Ref, RefusedError, RenewableError

ROWS = b"review,sentiment\n" + b"".join(b"text %d,%s\n" % (n, (b"good", b"bad")[n % 2]) for n in range(40))


class Bucket(MemoryStore):
    """The same behind every URI. ``fails``: what a read of the file, by its key, raises."""

    def __init__(self, **files: bytes) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.then: Callable[[str], object] = lambda key: None
        self.largest = 0
        for key, content in files.items():
            self.put(key, [content])

    def open(self, uri: str) -> Ref:
        assert uri.count("/") == 2, "the whole bucket"
        return Ref(self)

    def describe(self, key: str) -> str:
        return f"s3://rows/{key}"

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self.asked.append(key)
        self.largest = max(self.largest, *map(len, buffers))
        if key in self.fails:
            raise self.fails[key]
        super().fill(key, start, buffers)
        self.then(key)

    def entry(self, key: str) -> Entry:
        self.asked.append(key)
        return super().entry(key)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(**{"data/train.csv": ROWS, "test.csv": ROWS[:200]})


@pytest.fixture
def spec(job: Any) -> JobSpec:
    made: JobSpec = job(dataset__source="s3://rows/data/train.csv", dataset__splits={"test": "s3://rows/test.csv"}).spec
    return made


def silent(line: str) -> None:
    pass


def refusal(spec: JobSpec, bucket: Bucket, kind: type[Exception] = UserError) -> str:
    with pytest.raises(kind) as raised:
        fetch(spec, silent, patience=0, open_=bucket.open)
    assert "\n" not in str(raised.value)
    assert not list(Layout.of(spec).fetched.glob("*")), "neither a whole folder, nor a site, nor a lease"
    assert not list(Layout.of(spec).fetched.glob(".*"))
    return str(raised.value)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_after_it_the_spec_has_paths_and_nobody_is_asked_again(spec: JobSpec, bucket: Bucket) -> None:
    found = fetch(spec, silent, open_=bucket.open)
    assert (Path(found.dataset.source).name, Path(str(found.dataset.splits.test)).name) == ("train.csv", "test.csv")
    assert Path(found.dataset.source).read_bytes() == ROWS
    assert Path(str(found.dataset.splits.test)).read_bytes() == ROWS[:200]
    assert Path(found.dataset.source).is_relative_to(Layout.of(spec).fetched)
    bucket.asked.clear()
    bucket.put("data/train.csv", [b"other rows"])
    assert fetch(spec, silent, open_=bucket.open) == found == local(spec)
    assert not bucket.asked
    origin = json.loads((Path(found.dataset.source).parent / "train.csv.origin").read_text())
    assert (origin["source"], origin["files"]) == ("s3://rows/data/train.csv", {"train.csv": len(ROWS)})
    other = json.loads((Path(str(found.dataset.splits.test)).parent / "test.csv.origin").read_text())
    assert origin["digest"] != other["digest"]


def test_a_spec_of_paths_stays_as_it_is(job: Any) -> None:
    spec = job().spec
    assert places_of(spec) == ()
    assert fetch(spec, silent) is spec
    assert not Layout.of(spec).fetched.exists()


def test_states_and_prepared_rows_are_known_by_the_same_digests_wherever_the_rows_lie(
    job: Any, spec: JobSpec, bucket: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_bytes(ROWS)
    (tmp_path / "test.csv").write_bytes(ROWS[:200])
    there = job(dataset__source=str(tmp_path / "train.csv"), dataset__splits={"test": str(tmp_path / "test.csv")}).spec
    found = fetch(spec, silent, open_=bucket.open)
    assert state_digest(spec) == state_digest(found) == state_digest(there)
    assert prepared_digest(found) == prepared_digest(there)


def test_a_file_is_read_in_parts(spec: JobSpec, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    assert PART >= 8 << 20
    monkeypatch.setattr(fetched, "PART", 100)
    found = fetch(spec, silent, open_=bucket.open)
    assert Path(found.dataset.source).read_bytes() == ROWS
    assert bucket.largest == 100


def test_a_model_is_what_is_read_of_it(job: Any, bucket: Bucket) -> None:
    more = ("config.json", "model.safetensors", "vocab.txt", "optimizer.pt", "pytorch_model.bin", "onnx/model.onnx")
    for name in more:
        bucket.put(f"tiny/{name}", [name.encode()])
    spec = job(model__scratch=None, model__source="s3://models/tiny").spec
    found = fetch(spec, silent, open_=bucket.open)
    assert Path(str(found.model.source)).name == "tiny"
    assert names(Path(str(found.model.source))) == ["config.json", "model.safetensors", "vocab.txt"]
    assert found.dataset == spec.dataset


def test_a_folder_of_rows_comes_with_its_folders(job: Any, bucket: Bucket) -> None:
    files = {
        "saved/dataset_dict.json": b"{}",
        "saved/train/data.arrow": b"a" * 9,
        "saved/train/deep/x": b"",
        "saved/test/y": b"y",
    }
    for key, content in files.items():
        bucket.put(key, [content])
    # As some storage marks folders.
    bucket.put("saved/train", [b""])
    bucket.put("saved", [b""])
    found = fetch(job(dataset__source="s3://rows/saved").spec, silent, open_=bucket.open)
    folder = Path(found.dataset.source)
    assert {f"saved/{name}": (folder / name).read_bytes() for name in names(folder)} == files


def test_the_same_place_as_rows_and_as_a_model_is_two_things(job: Any, bucket: Bucket) -> None:
    for name in ("config.json", "model.safetensors", "state.json", "data.arrow"):
        bucket.put(f"both/{name}", [b"{}"])
    spec = job(model__scratch=None, model__source="s3://rows/both", dataset__source="s3://rows/both").spec
    found = fetch(spec, silent, open_=bucket.open)
    assert "data.arrow" in names(Path(found.dataset.source))
    assert "data.arrow" not in names(Path(str(found.model.source)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"dataset__source": "s3://rows/no.csv"}, "dataset.source s3://rows/no.csv: there is no such file or folder"),
        ({"dataset__source": "s3://rows/no"}, "dataset.source s3://rows/no: there is no such file or folder"),
        (
            {"dataset__source": "s3://rows/notes.txt"},
            "dataset.source s3://rows/notes.txt: has no ending that is known: name it .csv, .tsv, .jsonl, .json, .parquet, as what it is",
        ),
        (
            {"dataset__source": "s3://rows/deep.csv"},
            "dataset.source s3://rows/deep.csv: is a folder, not a .csv file: name a file in it",
        ),
        ({"dataset__source": "s3://rows/twice"}, "s3://rows/twice is a file and a folder as well: rename one of them"),
        ({"dataset__source": "s3://rows/inner"}, "s3://rows/inner/twice is a file and a folder as well: rename one of them"),
        (
            {"model__source": "s3://rows/test.csv"},
            "model.source s3://rows/test.csv: is a file: name the folder, which save_pretrained wrote",
        ),
        ({"model__source": "s3://rows/no"}, "model.source s3://rows/no: there is no such folder"),
        (
            {"model__source": "s3://rows/data"},
            "model.source s3://rows/data: has no config.json: name a folder that save_pretrained wrote",
        ),
    ],
)
def test_what_is_not_there_or_something_else_is_one_line(job: Any, bucket: Bucket, changes: dict[str, str], line: str) -> None:
    for key in ("notes.txt", "deep.csv/x", "twice", "twice/x", "inner/twice", "inner/twice/x"):
        bucket.put(key, [b"x"])
    if "model__source" in changes:
        changes = {"model__scratch": None, **changes}
    assert refusal(job(**changes).spec, bucket) == line


@pytest.mark.parametrize(
    "name", ["..", ".", "a/../../../x", "/etc/passwd", "new\nline", "nul\0", "esc\x1b[2J", "n" * 256, "ü" * 128, "\ud800"]
)
@pytest.mark.parametrize("as_folder", [False, True])
def test_no_name_of_a_bucket_leads_anywhere_else(
    job: Any, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, tmp_path: Path, name: str, as_folder: bool
) -> None:
    """Stores of the library have no such names; one that a server made up might."""
    listed = [name], []
    monkeypatch.setattr(bucket, "files", lambda key: listed[as_folder] if key == "evil" else ["x"])
    monkeypatch.setattr(bucket, "folders", lambda key: listed[not as_folder] if key == "evil" else [])
    monkeypatch.setattr(bucket, "is_folder", lambda key: key == "evil")
    monkeypatch.setattr(bucket, "entry", lambda key: Entry(1, 0.0) if key != "evil" else bucket._found(key))
    monkeypatch.setattr(bucket, "fill", lambda key, start, buffers: None)
    before = names(tmp_path)
    said = refusal(job(dataset__source="s3://rows/evil").spec, bucket)
    assert said.startswith("dataset.source s3://rows/evil: has the name ")
    assert said.endswith(", which no file may have here: rename it")
    assert said.isprintable()
    assert names(tmp_path) == before


def test_too_many_files_and_too_many_levels_are_refused(job: Any, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    bucket.put("deep/" + "d/" * (fetched.MOST_DEPTH + 1) + "x", [b"x"])
    for number in range(6):
        bucket.put(f"many/{number % 2}/{number}", [b"x"])
        bucket.put(f"many/config{number}.json", [b"x"])
    bucket.put("many/config.json", [b"x"])
    assert "more than 16 deep" in refusal(job(dataset__source="s3://rows/deep").spec, bucket)
    monkeypatch.setattr(fetched, "MOST_FILES", 5)
    said = refusal(job(dataset__source="s3://rows/many").spec, bucket)
    assert said == "dataset.source s3://rows/many: has more than 5 files: name a folder with the rows alone"
    assert "more than 5 files" in refusal(job(model__scratch=None, model__source="s3://rows/many").spec, bucket)


def test_a_read_that_fails_leaves_nothing_and_is_begun_anew(job: Any, bucket: Bucket) -> None:
    for name in ("state.json", "a.arrow", "b.arrow"):
        bucket.put(f"saved/{name}", [name.encode()])
    spec = job(dataset__source="s3://rows/saved").spec
    bucket.fails["saved/b.arrow"] = OSError("s3://rows/saved/b.arrow: nobody answers")
    assert refusal(spec, bucket, OutageError) == "dataset.source: s3://rows/saved/b.arrow: nobody answers"
    bucket.fails.clear()
    assert len(names(Path(fetch(spec, silent, open_=bucket.open).dataset.source))) == 3


def test_an_outage_is_waited_for(spec: JobSpec, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(fetched, "patiently", partial(patiently, clock=lambda: sum(waited), sleep=waited.append))
    bucket.fails["data/train.csv"] = OSError("nobody answers")
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if "tries again" in line:
            bucket.fails.clear()

    found = fetch(spec, hear, open_=bucket.open)
    assert Path(found.dataset.source).read_bytes() == ROWS
    assert any(line.startswith("dataset.source: nobody answers; tries again in 1 s") for line in said)
    assert waited == [1.0]


def test_refused_credentials_are_the_user_s_to_mend(spec: JobSpec, bucket: Bucket) -> None:
    bucket.fails["data/train.csv"] = RefusedError("s3://rows/data/train.csv: AccessDenied: no")
    assert refusal(spec, bucket) == (
        "dataset.source: s3://rows/data/train.csv: AccessDenied: no: name the bucket as it is called, and give credentials that may "
        "read it (checkpoint.secretName, or the environment)"
    )


def test_credentials_that_may_be_renewed_are_waited_for(spec: JobSpec, bucket: Bucket) -> None:
    bucket.fails["data/train.csv"] = RenewableError(
        "s3://rows/data/train.csv: ExpiredToken: it has expired: renew the Secret keys"
    )
    said = refusal(spec, bucket, OutageError)
    assert said == "dataset.source: s3://rows/data/train.csv: ExpiredToken: it has expired: renew the Secret keys"


@pytest.mark.parametrize("other", [ROWS[:-1] + b"x", ROWS + b"more\n", ROWS[:100]])
def test_a_file_that_changes_meanwhile_is_no_mixture_of_two(spec: JobSpec, bucket: Bucket, other: bytes) -> None:
    bucket.then = lambda key: bucket.put(key, [other])
    said = refusal(spec, bucket, OutageError)
    assert said == "dataset.source: s3://rows/data/train.csv was changed while it was fetched"


def test_a_file_that_goes_meanwhile_is_told(spec: JobSpec, bucket: Bucket) -> None:
    bucket.then = bucket.delete
    assert "went away while s3://rows/data/train.csv was fetched" in refusal(spec, bucket, OutageError)


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    spec: JobSpec, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    said = refusal(spec, bucket)
    assert said.startswith("dataset.source s3://rows/data/train.csv: there is no room for it in ")
    assert said.endswith("are free: make room, or choose another output.path")
    assert bucket.largest == 0


def test_a_disk_that_fills_meanwhile_is_told(spec: JobSpec, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetched, "write_all", full)
    said = refusal(spec, bucket)
    assert said.startswith("dataset.source s3://rows/data/train.csv: cannot be kept in ")
    assert "No space left on device: make room there" in said


def test_an_output_folder_that_cannot_be_written_is_told(job: Any, bucket: Bucket) -> None:
    spec = job(dataset__source="s3://rows/test.csv", output__path="/dev/null/out").spec
    with pytest.raises(
        UserError, match=r"^dataset.source s3://rows/test.csv: cannot be kept in /dev/null/out/fetched: Not a directory"
    ):
        fetch(spec, silent, patience=0, open_=bucket.open)


def test_bytes_are_told_every_two_seconds(spec: JobSpec, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched.SECONDS <= 2
    monkeypatch.setattr(fetched, "SECONDS", 0.01)
    monkeypatch.setattr(fetched, "PART", len(ROWS) // 2 + 1)
    bucket.then = lambda key: time.sleep(0.1)
    said: list[str] = []
    fetch(spec, said.append, open_=bucket.open)
    assert "fetching s3://rows/data/train.csv: 0.0 of 0.0 MB" in said
    assert len(said) > 5


def test_of_many_that_want_it_one_fetches(spec: JobSpec, bucket: Bucket) -> None:
    begun = threading.Event()

    def slow(key: str) -> None:
        begun.set()
        time.sleep(0.2)

    bucket.then = slow
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: fetch(spec, silent, f"pod {n}", open_=bucket.open), range(6)))
    assert found == [local(spec)] * 6
    assert sorted(set(bucket.asked)) == ["data/train.csv", "test.csv"]
    # Looked at, read, and looked at again.
    assert len(bucket.asked) == 6


def test_a_job_that_is_refused_leaves_nothing_and_its_error_names_the_bucket(
    spec: JobSpec, bucket: Bucket, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError) as raised, trying(spec, silent, bucket.open) as found:
        raise UserError(f"{found.dataset.source} has no rows")
    assert str(raised.value) == "s3://rows/data/train.csv has no rows"
    assert not out.exists()


def test_what_an_earlier_run_has_fetched_stays_when_a_job_is_refused(job: Any, spec: JobSpec, bucket: Bucket) -> None:
    had = fetch(job(dataset__source="s3://rows/data/train.csv").spec, silent, open_=bucket.open)
    with pytest.raises(KeyboardInterrupt), trying(spec, silent, bucket.open):
        raise KeyboardInterrupt
    assert places_of(spec)[0].path == Path(had.dataset.source)
    assert Path(had.dataset.source).read_bytes() == ROWS
    assert len(list(Layout.of(spec).fetched.iterdir())) == 1


def test_what_a_good_job_has_fetched_is_there_for_its_training(spec: JobSpec, bucket: Bucket) -> None:
    with trying(spec, silent, bucket.open):
        pass
    bucket.asked.clear()
    assert fetch(spec, silent, open_=bucket.open) == local(spec) != spec
    assert not bucket.asked


def test_a_check_without_a_training_leaves_nothing(spec: JobSpec, bucket: Bucket, tmp_path: Path) -> None:
    with trying(spec, silent, bucket.open, forget=True) as found:
        assert Path(found.dataset.source).read_bytes() == ROWS
    assert not (tmp_path / "out").exists()


def test_a_command_borrows_rows(bucket: Bucket) -> None:
    with borrowed("s3://rows/data/train.csv", "DATA", silent, bucket.open) as path:
        assert Path(path).read_bytes() == ROWS
    assert not Path(path).exists()
    with borrowed("rows.csv", "DATA", silent, bucket.open) as path:
        assert path == "rows.csv"
    for wrong, line in (
        ("s3://rows", "DATA s3://rows: this is a whole bucket"),
        ("s3://rows/a//b", "DATA s3://rows/a//b: write"),
    ):
        with pytest.raises(UserError, match=line), borrowed(wrong, "DATA", silent, bucket.open):
            pass
    with pytest.raises(UserError) as raised, borrowed("s3://rows/test.csv", "DATA", silent, bucket.open) as path:
        raise UserError(f"{path} has no rows")
    assert str(raised.value) == "s3://rows/test.csv has no rows"


def test_errors_of_ranks_name_the_place_as_the_job_does(spec: JobSpec) -> None:
    place = places_of(spec)[0]
    assert as_named(spec, f"{place.path} has no rows") == "s3://rows/data/train.csv has no rows"
