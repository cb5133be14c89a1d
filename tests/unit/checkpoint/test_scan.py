"""What can be in a checkpoint folder, and what is made of it."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.on_disk import commit_manifest, file_digest, make_folder, scan, survey, verify

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, part_file
from lmj_api.spec import Training
from lmj_trainer.checkpoint import digest
from lmj_trainer.checkpoint import scan as scan_module
from lmj_trainer.checkpoint.digest import CHUNK
from lmj_trainer.checkpoint.scan import scan_in_thread
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.durable import write_atomically
from lmj_trainer.store.port import Ref

DIGEST = "d" * 32


def put(root: Path, step: int, *, ranks: int = 2, best: bool = False, state: str = DIGEST) -> Path:
    folder = make_folder(root, step, 1)
    files = []
    for rank in range(ranks):
        path = folder / part_file(rank)
        write_atomically(path, f"state of rank {rank} after {step} steps".encode())
        files.append(ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path)))
    manifest = Manifest(job="job", view=1, step=step, epoch=step / 10, state_digest=state, seconds=1.0, best=best, files=files)
    commit_manifest(folder, manifest)
    return folder


def edit(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    value = json.loads((folder / MANIFEST).read_text())
    change(value)
    (folder / MANIFEST).write_text(json.dumps(value))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def test_digest_is_of_the_whole_file(tmp_path: Path) -> None:
    xxhash = pytest.importorskip("xxhash")
    content = os.urandom(CHUNK + 17)
    (tmp_path / "f").write_bytes(content)
    assert file_digest(tmp_path / "f") == xxhash.xxh3_128_hexdigest(content)


def test_good_ones_newest_first(tmp_path: Path) -> None:
    for step in (20, 100, 3):
        put(tmp_path, step)
    found = scan(tmp_path, DIGEST)
    assert [(c.step, c.name, c.problem) for c in found] == [(s, checkpoint_name(s, 1), None) for s in (100, 20, 3)]
    assert found[0].size == sum((tmp_path / found[0].name / part_file(r)).stat().st_size for r in (0, 1))
    assert found[0].time == (tmp_path / found[0].name / MANIFEST).stat().st_mtime


def test_of_an_earlier_part_only_what_the_run_went_on_from_is_its_own(tmp_path: Path) -> None:
    """What that part trained after its last step, in another process that did not know, is no state of this run."""
    for step in (10, 20, 21):
        put(tmp_path, step, state="e" * 32)
    training = Training.model_validate({"continues": [{"step": 20, "state_digest": "e" * 32}]})
    assert [found.info.step for found in survey(tmp_path, DIGEST, training) if found.info.problem is None] == [20, 10]
    (late,) = [found.info for found in survey(tmp_path, DIGEST, training) if found.info.problem is not None]
    assert (late.step, "was written with another model, data or hyper-parameters" in str(late.problem)) == (21, True)


def test_one_that_was_heard_of_is_found_where_it_is_not_listed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on storage that lists for a while what another machine had there before."""
    put(tmp_path, 10)
    put(tmp_path, 20)
    listed, scandir = [e for e in os.scandir(tmp_path) if "20" not in e.name], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: contextlib.nullcontext(listed) if path == tmp_path else scandir(path))
    assert [c.step for c in scan(tmp_path, DIGEST)] == [10]
    heard = ["step-000000020-v1", "step-000000030-v1", "../job", "step-000000010-v1"]
    assert [(c.step, c.problem) for c in scan(tmp_path, DIGEST, names=heard)] == [(20, None), (10, None)]
    (tmp_path / "step-000000040-v1").symlink_to(tmp_path / "step-000000020-v1")
    assert [c.step for c in scan(tmp_path, DIGEST, names=["step-000000040-v1"])] == [10]


def test_what_was_verified_before_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 10)
    known = {c.name: c.size for c in scan(tmp_path, DIGEST)}
    read: list[str] = []
    monkeypatch.setattr(
        "lmj_trainer.checkpoint.scan.file_digest", lambda file: read.append(str(file)) or digest.file_digest(file)
    )
    assert [c.problem for c in scan(tmp_path, DIGEST, trusted=known)] == [None]
    assert read == []
    newer = put(tmp_path, 20)
    assert [c.problem for c in scan(tmp_path, DIGEST, trusted=known)] == [None, None]
    assert read == [str(newer / f"rank-{rank}.safetensors") for rank in (0, 1)]
    # Another of the name is not what was verified, and one that was cut short is noticed.
    os.truncate(tmp_path / "step-000000010-v1" / "rank-0.safetensors", 3)
    assert [c.problem is None for c in scan(tmp_path, DIGEST, trusted=known)] == [True, False]
    put(tmp_path, 10, ranks=3)
    flip(tmp_path / "step-000000010-v1" / "rank-0.safetensors")
    shutil.rmtree(newer)
    assert [c.problem is None for c in scan(tmp_path, DIGEST, trusted=known)] == [False]


def test_one_that_is_removed_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = put(tmp_path, 10), put(tmp_path, 20)
    real = scan_module._manifest

    def manifest(folder: Ref) -> tuple[Manifest, float]:
        if folder.name == gone.name:
            shutil.rmtree(gone)
        return real(folder)

    monkeypatch.setattr(scan_module, "_manifest", manifest)
    assert [(c.name, c.problem) for c in scan(tmp_path, DIGEST)] == [(kept.name, None)]


def test_no_folder_and_strangers(tmp_path: Path) -> None:
    assert scan(tmp_path / "absent", DIGEST) == []
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-12").mkdir()
    (tmp_path / "step-0000000012").mkdir()
    (tmp_path / "step-000000012").write_text("a file")
    put(tmp_path, 5)
    (tmp_path / "step-000000013").symlink_to(tmp_path / "step-000000005-v1")
    assert [c.step for c in scan(tmp_path, DIGEST)] == [5]


def test_altered_file_names_it_and_both_digests(tmp_path: Path) -> None:
    put(tmp_path, 10)
    path = put(tmp_path, 20) / "rank-1.safetensors"
    before = file_digest(path)
    flip(path)
    newest, older = scan(tmp_path, DIGEST)
    assert newest.problem is not None
    for part in (str(path), before, file_digest(path), "altered"):
        assert part in newest.problem
    assert older.problem is None


def test_truncated_file(tmp_path: Path) -> None:
    path = put(tmp_path, 20) / "rank-0.safetensors"
    digest = file_digest(path)
    os.truncate(path, 5)
    problem = scan(tmp_path, DIGEST)[0].problem
    assert problem is not None
    assert str(path) in problem
    assert "has 5 bytes of 3" in problem
    assert "torn" in problem
    assert digest in problem
    assert file_digest(path) in problem


def test_missing_file_and_missing_manifest(tmp_path: Path) -> None:
    (put(tmp_path, 30) / "rank-1.safetensors").unlink()
    (put(tmp_path, 20) / MANIFEST).unlink()
    first, second = scan(tmp_path, DIGEST)
    assert first.problem == f"{tmp_path}/step-000000030-v1/rank-1.safetensors is missing"
    assert second.problem == "half-written (no manifest)"
    assert second.step == 20


def test_another_jobs_state(tmp_path: Path) -> None:
    put(tmp_path, 20, state="e" * 32)
    put(tmp_path, 10)
    newest, older = scan(tmp_path, DIGEST)
    assert newest.problem is not None
    assert "another model, data or hyper-parameters" in newest.problem
    assert "e" * 32 in newest.problem
    assert DIGEST in newest.problem
    assert older.problem is None
    assert [f.info.problem for f in survey(tmp_path, None)] == [None, None]


def test_behind_the_newest_good_one_only_sizes(tmp_path: Path) -> None:
    flip(put(tmp_path, 10) / "rank-0.safetensors")
    os.truncate(put(tmp_path, 20) / "rank-0.safetensors", 1)
    put(tmp_path, 30)
    assert [c.problem is None for c in scan(tmp_path, DIGEST)] == [True, False, True]
    assert [f.info.problem is None for f in survey(tmp_path, DIGEST, everything=True)] == [True, False, False]
    os.truncate(tmp_path / "step-000000030-v1" / "rank-0.safetensors", 1)
    assert [c.problem is None for c in scan(tmp_path, DIGEST)] == [False, False, False]


def test_the_newest_usable_best_is_the_best(tmp_path: Path) -> None:
    for step in (10, 20):
        put(tmp_path, step, best=True)
    flip(put(tmp_path, 30, best=True) / "rank-0.safetensors")
    assert [c.best for c in scan(tmp_path, DIGEST)] == [False, True, False]


def _traverse(value: dict[str, object]) -> None:
    value["files"][0]["name"] = "../../rank-0.safetensors"  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_traverse, "files.0.name"),
        (lambda v: v["files"][0].update(name="/etc/passwd"), "files.0.name"),
        (lambda v: v["files"].append(v["files"][0]), "one file for each rank"),
        (lambda v: v["files"].pop(0), "one file for each rank"),
        (lambda v: v.update(files=[]), "one file for each rank"),
        (lambda v: v.update(step=7), "is of step-000000007-v1, not of step-000000020-v1"),
        (lambda v: v.update(step=-1), "step"),
        (lambda v: v.update(format="lmj.checkpoint/2"), "format"),
        (lambda v: v.update(extra=1), "extra"),
        (lambda v: v["files"][0].update(xxh128="0"), "xxh128"),
    ],
)
def test_hostile_manifests(tmp_path: Path, change: Callable[[dict[str, object]], None], reason: str) -> None:
    folder = put(tmp_path, 20)
    edit(folder, change)
    problem = scan(tmp_path, DIGEST)[0].problem
    assert problem is not None
    assert str(folder / MANIFEST) in problem
    assert reason in problem
    assert "\n" not in problem


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b"[]", b"[" * 100_000, b"null"])
def test_torn_manifests(tmp_path: Path, content: bytes) -> None:
    (put(tmp_path, 20) / MANIFEST).write_bytes(content)
    problem = scan(tmp_path, DIGEST)[0].problem
    assert problem is not None
    assert "is not a manifest" in problem


def test_manifest_too_large_is_not_read(tmp_path: Path) -> None:
    os.truncate(put(tmp_path, 20) / MANIFEST, 1 << 40)
    problem = scan(tmp_path, DIGEST)[0].problem
    assert problem is not None
    assert "no manifest is larger" in problem


def test_links_and_pipes_are_no_files(tmp_path: Path) -> None:
    folder = put(tmp_path, 20)
    (folder / "rank-0.safetensors").rename(tmp_path / "elsewhere")
    (folder / "rank-0.safetensors").symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in (scan(tmp_path, DIGEST)[0].problem or "")
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    assert "not a regular file" in (scan(tmp_path, DIGEST)[0].problem or "")


def test_a_folder_removed_meanwhile_is_nothing(tmp_path: Path) -> None:
    assert verify(tmp_path / "step-000000020-v1", DIGEST) is None


def test_unreadable_is_a_problem_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 20)

    def refuse(_: Ref) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lmj_trainer.checkpoint.scan.file_digest", refuse)
    assert "cannot be read" in (scan(tmp_path, DIGEST)[0].problem or "")


async def test_in_a_thread(tmp_path: Path) -> None:
    put(tmp_path, 20)
    assert await asyncio.wait_for(scan_in_thread(lambda: scan(tmp_path, DIGEST)), 10) == scan(tmp_path, DIGEST)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        await asyncio.wait_for(scan_in_thread(lambda: scan(tmp_path / "file", DIGEST)), 10)
