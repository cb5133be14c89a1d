"""An older view's member that was cut off and does not know it: what it may still do to checkpoints."""

from pathlib import Path

import pytest

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, parse_checkpoint_name, rank_file
from lmj_api.protocol import CheckpointInfo
from lmj_trainer.checkpoint.digest import file_digest
from lmj_trainer.checkpoint.fence import folders, successor
from lmj_trainer.checkpoint.prune import surplus
from lmj_trainer.checkpoint.scan import scan
from lmj_trainer.checkpoint.write import commit_manifest, make_folder, write_atomically


def put(root: Path, step: int, view: int, job: str = "j", state: str = "d", text: str = "") -> Manifest:
    folder = make_folder(root, step, view)
    path = folder / rank_file(0)
    write_atomically(path, f"{step} {view} {text}".encode())
    file = ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path))
    manifest = Manifest(job=job, view=view, step=step, epoch=0, state_digest=state, seconds=0, files=[file])
    commit_manifest(folder, manifest)
    return manifest


def test_names_go_there_and_back_and_sort_by_step_and_view() -> None:
    names = [
        checkpoint_name(9, 12),
        checkpoint_name(10),
        checkpoint_name(10, 2),
        checkpoint_name(10, 11),
        checkpoint_name(10**9, 1),
    ]
    assert [parse_checkpoint_name(name) for name in names] == [(9, 12), (10, 0), (10, 2), (10, 11), (10**9, 1)]
    shuffled = [names[n] for n in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=parse_checkpoint_name) == names


@pytest.mark.parametrize("name", ["step-9", "step-0000000009", "step-000000009-v0", "step-000000009-v01", "step-000000009-v1\n"])
def test_one_spelling_a_checkpoint(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a checkpoint's folder"):
        parse_checkpoint_name(name)


def test_two_views_never_write_to_one_place(tmp_path: Path) -> None:
    put(tmp_path, 20, 2, text="newer")
    before = scan(tmp_path, "d")
    put(tmp_path, 20, 1, text="older, and later")
    after = scan(tmp_path, "d")
    assert after[0] == before[0], "the newer is first and whole"
    assert [(c.name, c.problem) for c in after] == [("step-000000020-v2", None), ("step-000000020-v1", None)]


def test_of_one_step_the_newest_views_stays(tmp_path: Path) -> None:
    found = [CheckpointInfo(name=checkpoint_name(s, v), step=s) for s, v in ((30, 2), (20, 2), (20, 1), (10, 1))]
    assert surplus(found, 3) == ["step-000000020-v1"]
    assert surplus(found, 2) == ["step-000000010-v1", "step-000000020-v1"]


def test_whoever_was_followed_is_told_by_the_storage(tmp_path: Path) -> None:
    assert folders(tmp_path / "none") == []
    mine = put(tmp_path, 10, 2)
    assert successor(tmp_path, mine, []) is None
    put(tmp_path, 5, 1)
    put(tmp_path, 20, 9, job="another")
    put(tmp_path, 20, 8, state="another")
    make_folder(tmp_path, 30, 7)  # half-written
    assert successor(tmp_path, mine, []) is None
    before = folders(tmp_path)
    put(tmp_path, 8, 3)
    assert successor(tmp_path, mine, before) == "step-000000008-v3"
    # Of an earlier run of the job, whose views were counted anew.
    assert successor(tmp_path, mine, folders(tmp_path)) is None


def test_a_manifest_of_another_view_is_not_this_folders(tmp_path: Path) -> None:
    made = put(tmp_path, 20, 2)
    folder = tmp_path / checkpoint_name(20, 2)
    with pytest.raises(ValueError, match="is not the folder of step 20 and view 1"):
        commit_manifest(folder, made.model_copy(update={"view": 1}))
    write_atomically(folder / "manifest.json", made.model_copy(update={"view": 1}).to_json().encode())
    [found] = scan(tmp_path, "d")
    assert found.problem == f"{folder / 'manifest.json'} is of step 20 and view 1, not of step-000000020-v2"
