"""Checkpoints from one place to another: of a volume to object storage, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import xxhash

from lmj_api.manifest import ManifestFile
from lmj_trainer.checkpoint.digest import CHUNK
from lmj_trainer.checkpoint.scan import Found, verify
from lmj_trainer.checkpoint.write import commit_manifest
from lmj_trainer.store.port import Ref


def copy(found: Sequence[Found], source: Ref, target: Ref, say: Callable[[str], None]) -> list[str]:
    """Copy what of ``found`` in ``source`` can be used, oldest first: names of those that are in ``target`` then and were not before.

    A checkpoint is there when its manifest is, which comes last, so after a crash it is done again. What ``target`` has already, with the
    same digests, stays as it is. Raises OSError, also where a file has changed since it was verified.
    """
    copied = []
    for each in reversed(found):
        name, manifest = each.info.name, each.manifest
        if manifest is None or each.info.problem is not None:
            continue
        there = verify(target / name, None)
        if there is not None and there.info.problem is None and there.manifest == manifest:
            (target / name).tidy()  # an earlier copy may have ended in the middle of a file
            continue
        say(f"copying {name}, {each.info.size:,} bytes")
        for file in manifest.files:
            (target / name / file.name).put(_content(source / name / file.name, file))
        commit_manifest(target / name, manifest)
        copied.append(name)
    return copied


def _content(source: Ref, file: ManifestFile) -> Iterator[bytes]:
    """Of the file, to the last byte what its manifest says: a store that gets an error makes no file of what came before."""
    digest, start = xxhash.xxh3_128(), 0
    while piece := source.get(start, CHUNK):
        digest.update(piece)
        start += len(piece)
        yield piece
    if digest.hexdigest() != file.xxh128:
        raise OSError(f"{source} has changed since it was verified")
