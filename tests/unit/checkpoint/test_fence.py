"""An older view's member that was cut off and does not know it: what it may still do to checkpoints."""

import json
import os
from pathlib import Path

import pytest
from tests.on_disk import commit_manifest, declare_over, file_digest, folders, make_folder, newest_over, scan, successor

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, parse_checkpoint_name, part_file, run_of_checkpoint
from lmj_api.protocol import CheckpointInfo
from lmj_api.run import Run
from lmj_trainer.checkpoint.prune import surplus
from lmj_trainer.durable import write_atomically

A, B = (Run(id=f"{digit * 8}-0000-4000-8000-000000000000", begun=begun) for digit, begun in (("a", 1.0), ("b", 2.0)))


def put(
    root: Path, step: int, view: int, job: str = "j", state: str = "d", text: str = "", run: Run | None = A, complete: bool = True
) -> Manifest:
    folder = make_folder(root, step, view, run)
    path = folder / part_file(0)
    write_atomically(path, f"{step} {view} {text}".encode())
    file = ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path))
    manifest = Manifest(job=job, run=run, view=view, step=step, epoch=0, state_digest=state, seconds=0, files=[file])
    if complete:
        commit_manifest(folder, manifest)
    return manifest


def test_names_go_there_and_back_and_sort_by_step_and_view() -> None:
    names = [
        checkpoint_name(9, 12),
        checkpoint_name(10),
        checkpoint_name(10, 2, A),
        checkpoint_name(10, 11),
        checkpoint_name(10**9, 1),
    ]
    assert [parse_checkpoint_name(name) for name in names] == [(9, 12), (10, 0), (10, 2), (10, 11), (10**9, 1)]
    assert [run_of_checkpoint(name) for name in names] == [None, None, "aaaaaaaa", None, None]
    assert names[2] == "step-000000010-v2-aaaaaaaa"
    assert checkpoint_name(10, 2, Run()) == checkpoint_name(10, 2)
    shuffled = [names[n] for n in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=parse_checkpoint_name) == names


@pytest.mark.parametrize(
    "name",
    [
        "step-9",
        "step-0000000009",
        "step-0000000000",
        "step-000000009-v0",
        "step-000000009-v01",
        "step-000000009-v1\n",
        "step-000000009-v1-aaaaaaa",
        "step-000000009-v1-AAAAAAAA",
        "step-000000009-aaaaaaaa",
        "step-0000000009-v1-aaaaaaaa",
    ],
)
def test_one_spelling_a_checkpoint(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a checkpoint's folder"):
        parse_checkpoint_name(name)


def test_two_views_never_write_to_one_place(tmp_path: Path) -> None:
    put(tmp_path, 20, 2, text="newer")
    before = scan(tmp_path, "d")
    put(tmp_path, 20, 1, text="older, and later")
    after = scan(tmp_path, "d")
    assert after[0] == before[0], "the newer is first and whole"
    assert [(c.name, c.problem) for c in after] == [
        ("step-000000020-v2-aaaaaaaa", None),
        ("step-000000020-v1-aaaaaaaa", None),
    ]


def test_nor_do_two_runs(tmp_path: Path) -> None:
    """A job that was deleted and made again counts its views from 1."""
    put(tmp_path, 20, 1, state="earlier", text="good")
    before = scan(tmp_path, "earlier")
    put(tmp_path, 20, 1, run=B)
    assert [(c.name, c.problem is None) for c in scan(tmp_path, "earlier")] == [
        ("step-000000020-v1-bbbbbbbb", False),
        ("step-000000020-v1-aaaaaaaa", True),
    ]
    assert scan(tmp_path, "earlier")[1] == before[0]


def test_of_one_step_the_newest_views_stays(tmp_path: Path) -> None:
    found = [CheckpointInfo(name=checkpoint_name(s, v), step=s) for s, v in ((30, 2), (20, 2), (20, 1), (10, 1))]
    assert surplus(found, 3) == ["step-000000020-v1"]
    assert surplus(found, 2) == ["step-000000010-v1", "step-000000020-v1"]


def test_whoever_was_followed_is_told_by_the_storage(tmp_path: Path) -> None:
    assert folders(tmp_path / "none") == []
    mine = put(tmp_path, 10, 2)
    assert successor(tmp_path, mine) is None
    put(tmp_path, 5, 1)
    put(tmp_path, 20, 9, job="another")
    put(tmp_path, 20, 8, run=B)  # its views are counted again
    put(tmp_path, 20, 8, run=None)
    put(tmp_path, 30, 7, complete=False)
    assert successor(tmp_path, mine) is None
    put(tmp_path, 8, 3)
    assert successor(tmp_path, mine) == "step-000000008-v3-aaaaaaaa"


def test_where_nobody_gave_runs_an_identity_their_state_tells_them_apart(tmp_path: Path) -> None:
    mine = put(tmp_path, 10, 2, run=None)
    put(tmp_path, 20, 8, state="another", run=None)
    assert successor(tmp_path, mine) is None
    put(tmp_path, 30, 3, run=None)
    assert successor(tmp_path, mine) == "step-000000030-v3"


def test_a_view_is_declared_over_for_its_run_and_for_good(tmp_path: Path) -> None:
    declare_over(tmp_path / "none", A, 3)
    assert newest_over(tmp_path / "none", A) == 0
    assert not (tmp_path / "none").exists()
    declare_over(tmp_path, A, 3)
    declare_over(tmp_path, A, 3)
    declare_over(tmp_path, B, 1)
    assert (newest_over(tmp_path, A), newest_over(tmp_path, B)) == (3, 1)
    declare_over(tmp_path, A, 11)
    declare_over(tmp_path, A, 5)  # late, by who was cut off
    assert (newest_over(tmp_path, A), newest_over(tmp_path, B)) == (11, 1)
    assert ".over-v3-aaaaaaaa" not in os.listdir(tmp_path)
    assert scan(tmp_path, "d") == []


def test_a_manifest_of_another_view_is_not_this_folders(tmp_path: Path) -> None:
    made = put(tmp_path, 20, 2)
    folder = tmp_path / checkpoint_name(20, 2, A)
    with pytest.raises(ValueError, match="is not the folder of step 20 and view 1: that is step-000000020-v1-aaaaaaaa"):
        commit_manifest(folder, made.model_copy(update={"view": 1}))
    write_atomically(folder / "manifest.json", made.model_copy(update={"view": 1}).to_json().encode())
    [found] = scan(tmp_path, "d")
    assert found.problem == f"{folder / 'manifest.json'} is of step-000000020-v1-aaaaaaaa, not of step-000000020-v2-aaaaaaaa"


def test_what_was_written_before_runs_had_an_identity_loads(tmp_path: Path) -> None:
    put(tmp_path, 20, 2, run=None)
    manifest = tmp_path / "step-000000020-v2" / "manifest.json"
    old = json.loads(manifest.read_text())
    assert old.pop("run", None) is None
    manifest.write_text(json.dumps(old))
    assert [(c.name, c.problem) for c in scan(tmp_path, "d")] == [("step-000000020-v2", None)]
