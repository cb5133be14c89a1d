"""Checkpoints that somebody else wrote, or a disk has altered: they are refused with a line, whatever is in them, and take no memory."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.on_disk import at, commit_manifest, make_folder, scan, survey, verify, write_tensors

from lmj_api.manifest import Manifest
from lmj_api.names import part_file
from lmj_trainer.checkpoint.tensors import copy_tensors, read_manifest
from lmj_trainer.checkpoint.write import MANIFEST

DIGEST = "d" * 32
TENSORS = {"a.weight": torch.arange(12, dtype=torch.float32).view(3, 4), "exp_avg/a.weight": torch.ones(3, 4)}
MOST_MEMORY = 16 << 20
"""Bytes, for files of less than a thousand."""
SPLICE = st.tuples(st.floats(0, 1), st.integers(0, 64), st.binary(max_size=64))
"""Where, how many bytes go, and what comes in their place."""
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1 << 63, 10**400, "../x", "rank-0.safetensors"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "size", "xxh128", "step"]), inner, max_size=3)
    ),
    max_leaves=6,
)
DEEP = b'{"files":' + b"[" * 200_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good checkpoint of two ranks, of which each example has a copy: to write one waits for the disk."""
    folder = make_folder(tmp_path_factory.mktemp("good"), 7, 1)
    files = [write_tensors(folder / part_file(rank), [item]) for rank, item in enumerate(TENSORS.items())]
    commit_manifest(folder, Manifest(job="j", view=1, step=7, epoch=0.5, state_digest=DIGEST, seconds=1.0, files=files))
    return folder


def copied(source: Path, root: Path) -> Path:
    return Path(shutil.copytree(source, root / source.name))


def spliced(content: bytes, where: float, gone: int, new: bytes) -> bytes:
    place = round(where * len(content))
    return content[:place] + new + content[place + gone :]


def looked_at(folder: Path) -> str | None:
    """The checkpoint's problem, as each reader reports it; what it takes is bounded."""
    tracemalloc.start()
    try:
        found = [scan(folder.parent, DIGEST)[0], survey(folder.parent, None, everything=True)[0].info]
        about = verify(folder, DIGEST, digests=False)
        assert about is not None
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    for problem in [each.problem for each in [*found, about.info]]:
        assert problem is None or ("\n" not in problem and len(problem) < 2000), problem
    assert taken < MOST_MEMORY
    return found[0].problem


@settings(max_examples=60)
@given(st.lists(SPLICE, min_size=1, max_size=4))
@example([(0.0, 64_000, DEEP)])
@example([(0.0, 64_000, b"")])
@example([(0.0, 64_000, b"\xff\xfe\x00")])
def test_a_manifest_of_any_bytes(
    source: Path, tmp_path_factory: pytest.TempPathFactory, splices: list[tuple[float, int, bytes]]
) -> None:
    folder = copied(source, tmp_path_factory.mktemp("fuzz"))
    content = good = (folder / MANIFEST).read_bytes()
    for splice in splices:
        content = spliced(content, *splice)
    (folder / MANIFEST).write_bytes(content)
    problem = looked_at(folder)
    if problem is None:  # no more than words beside the state were changed
        assert read_manifest(at(folder)).files == Manifest.model_validate_json(good).files


@settings(max_examples=60)
@given(st.sampled_from(["step", "view", "files", "job", "run", "epoch", "best_step", "state_digest", "format", "more"]), VALUE)
def test_a_manifest_with_any_value(source: Path, tmp_path_factory: pytest.TempPathFactory, name: str, value: object) -> None:
    folder = copied(source, tmp_path_factory.mktemp("fuzz"))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {name: value}))
    looked_at(folder)


@settings(max_examples=60)
@given(st.integers(0, 1), st.lists(SPLICE, min_size=1, max_size=3))
@example(0, [(0.0, 8, (1 << 62).to_bytes(8, "little"))])
def test_a_part_of_any_bytes(
    source: Path, tmp_path_factory: pytest.TempPathFactory, rank: int, splices: list[tuple[float, int, bytes]]
) -> None:
    """Also where nobody compares digests: its weights are another's then, and no more."""
    folder = copied(source, tmp_path_factory.mktemp("fuzz"))
    path = folder / part_file(rank)
    good = content = path.read_bytes()
    for splice in splices:
        content = spliced(content, *splice)
    path.write_bytes(content)
    assert (looked_at(folder) is None) == (content == good)
    manifest = read_manifest(at(folder))
    files = [file.model_copy(update={"size": (folder / file.name).stat().st_size}) for file in manifest.files]
    manifest = manifest.model_copy(update={"files": files})
    targets = {name: torch.zeros(3, 4) for name in TENSORS}
    tracemalloc.start()
    try:
        copy_tensors(at(folder), manifest, targets.items())
    except (OSError, ValueError, KeyError):
        pass
    else:
        assert torch.equal(targets[list(TENSORS)[1 - rank]], list(TENSORS.values())[1 - rank])
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert taken < MOST_MEMORY
