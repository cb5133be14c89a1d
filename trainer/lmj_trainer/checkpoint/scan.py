"""What is in a checkpoint folder, and which of it can be trusted. Reads only: nothing is ever deleted here."""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationError

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, parse_checkpoint_name, part_file
from lmj_api.protocol import CheckpointInfo
from lmj_api.spec import Training
from lmj_trainer.beside import beside
from lmj_trainer.checkpoint.digest import file_digest
from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.store.port import NotAFileError, Ref

LARGEST_MANIFEST = 1 << 20
"""Bytes; a manifest of 1,000 ranks has 150 KB. What is larger is not read: checkpoint folders may be shared with others."""


@dataclass(frozen=True)
class Found:
    """One checkpoint folder: what is told of it, and its manifest when that could be read."""

    info: CheckpointInfo
    manifest: Manifest | None = None


class _UnusableError(Exception):
    """Why a checkpoint cannot be used."""


def scan(
    root: Ref,
    state_digest: str,
    training: Training | None = None,
    names: Collection[str] = (),
    trusted: Mapping[str, int] = MappingProxyType({}),
) -> list[CheckpointInfo]:
    """All checkpoints in ``root``, newest first; ``[]`` when the folder is not there. Raises OSError when it cannot be listed.

    Verified from the newest on, with all digests up to the first good one; behind it only sizes are compared, since nothing
    older is loaded while that one stands. ``state_digest``: the job's, see :mod:`lmj_trainer.checkpoint.identity`; ``training``:
    the job's, where it may continue an earlier run. ``names``: some that were heard of, for storage may list them later than another
    machine has written them. ``trusted``: bytes of those that were verified before, by name: of these, too, only sizes are compared.
    """
    return [found.info for found in survey(root, state_digest, training, names, trusted)]


def survey(
    root: Ref,
    state_digest: str | None,
    training: Training | None = None,
    names: Collection[str] = (),
    trusted: Mapping[str, int] = MappingProxyType({}),
    *,
    everything: bool = False,
    digests: bool = True,
) -> list[Found]:
    """As :func:`scan`, with manifests. ``state_digest`` None: any job's. ``everything``: all digests of all checkpoints.

    ``digests`` False: none at all, sizes only.
    """
    result: list[Found] = []
    good = best = False
    for folder in _folders(root, names):
        read = digests and (everything or not good)
        found = verify(folder, state_digest, training, digests=read, trusted=trusted.get(folder.name))
        if found is None:
            continue
        usable = found.info.problem is None
        if found.info.best and (best or not usable):
            # Each was the best in its time; the newest that can be used beat the others.
            found = Found(found.info.model_copy(update={"best": False}), found.manifest)
        best = best or found.info.best
        good = good or usable
        result.append(found)
    return result


def verify(
    folder: Ref, state_digest: str | None, training: Training | None = None, *, digests: bool = True, trusted: int | None = None
) -> Found | None:
    """The checkpoint in ``folder``; ``info.problem`` tells the file and the reason when it cannot be used.

    None: the folder is gone. ``state_digest`` None: any job's. ``digests`` False compares sizes only, as for one of ``trusted`` bytes.
    """
    step, _ = parse_checkpoint_name(folder.name)
    blank = CheckpointInfo(name=folder.name, step=step)
    manifest: Manifest | None = None
    try:
        manifest, time = _manifest(folder)
        info = CheckpointInfo(
            name=folder.name, step=step, size=sum(file.size for file in manifest.files), best=manifest.best, time=time
        )
        try:
            _check(folder, manifest, state_digest, training)
            for file in manifest.files:
                _check_file(folder / file.name, file, digests and info.size != trusted)
        except _UnusableError as problem:
            return Found(info.model_copy(update={"problem": str(problem)}), manifest)
    except _UnusableError as problem:
        # Removed by its owner between listing and reading: there is nothing to tell.
        return Found(blank.model_copy(update={"problem": str(problem)})) if folder.is_folder() else None
    except OSError as error:
        return Found(blank.model_copy(update={"problem": f"cannot be read: {error}"}), manifest) if folder.is_folder() else None
    return Found(info, manifest)


def survey_one(folder: Ref) -> Manifest | None:
    """The manifest of the checkpoint in ``folder``, whatever its files are; None: it has none that can be read."""
    found = verify(folder, None, digests=False)
    return found.manifest if found is not None else None


async def scan_in_thread(look: Callable[[], list[CheckpointInfo]]) -> list[CheckpointInfo]:
    """``look``, a :func:`scan`, beside the event loop."""
    return await asyncio.wrap_future(beside(look, "checkpoint-scan"))


def _folders(root: Ref, heard: Collection[str]) -> Iterator[Ref]:
    """Folders with a checkpoint's name, newest first: by step, and of one step that of the newest view. Those ``heard`` of are tried."""
    names = {name for name in heard if is_checkpoint(name) and (root / name).is_folder()}
    try:
        names |= {name for name in root.folders() if is_checkpoint(name)}
    except FileNotFoundError:
        return iter(())
    return iter([root / name for name in sorted(names, key=lambda name: (parse_checkpoint_name(name), name), reverse=True)])


def _manifest(folder: Ref) -> tuple[Manifest, float]:
    """The folder's manifest and when it was written. Raises _UnusableError."""
    path = folder / MANIFEST
    try:
        about = path.entry()
    except FileNotFoundError:
        raise _UnusableError("half-written (no manifest)") from None
    except NotAFileError:
        raise _UnusableError(f"{path} is not a regular file") from None
    if about.size > LARGEST_MANIFEST:
        raise _UnusableError(f"{path} has {about.size} bytes: no manifest is larger than {LARGEST_MANIFEST}")
    content = path.get(size=LARGEST_MANIFEST)
    try:
        return Manifest.model_validate_json(content), about.time
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = re.sub(r"\s+", " ", first["msg"])
        raise _UnusableError(f"{path} is not a manifest: {where + ': ' if where else ''}{reason}") from None


def _check(folder: Ref, manifest: Manifest, state_digest: str | None, training: Training | None) -> None:
    """Raise _UnusableError when ``manifest`` contradicts itself or its folder's name, or was written for another job."""
    path = folder / MANIFEST
    own = checkpoint_name(manifest.step, manifest.view, manifest.run)
    if folder.name not in (own, checkpoint_name(manifest.step)):
        raise _UnusableError(f"{path} is of {own}, not of {folder.name}")
    if [file.name for file in manifest.files] != [part_file(part) for part in range(len(manifest.files))] or not manifest.files:
        raise _UnusableError(
            f"{path} does not name one file for each rank in order: {', '.join(f.name for f in manifest.files) or 'none'}"
        )
    followed = training is not None and training.follows(manifest.step, manifest.state_digest)
    if state_digest is not None and manifest.state_digest != state_digest and not followed:
        raise _UnusableError(
            f"{path} was written with another model, data or hyper-parameters (digest {manifest.state_digest}, this job's is "
            f"{state_digest}): undo the change, or use another checkpoint folder"
        )


def _check_file(path: Ref, file: ManifestFile, digests: bool) -> None:
    """Raise _UnusableError when the file at ``path`` is not what its manifest says."""
    try:
        about = path.entry()
    except FileNotFoundError:
        raise _UnusableError(f"{path} is missing") from None
    except NotAFileError:
        raise _UnusableError(f"{path} is not a regular file") from None
    resized = about.size != file.size
    if not resized and not digests:
        return
    digest = file_digest(path)
    if digest != file.xxh128:
        size = f"{about.size} bytes of {file.size} and " if resized else ""
        raise _UnusableError(
            f"{path} has {size}digest {digest}, its manifest says {file.xxh128}: {'torn' if resized else 'altered'}"
        )
    if resized:
        raise _UnusableError(f"{path} has {about.size} bytes, its manifest says {file.size} (digest {digest})")
