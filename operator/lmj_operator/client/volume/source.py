"""What a person names on this machine to be uploaded."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmj_operator.client.volume.far.tree import Found, LeftOut, Tree


@dataclass(frozen=True)
class Source:
    """A file, or the files of a folder."""

    tree: Tree
    files: Sequence[Found]
    left_out: LeftOut
    folder: bool
    name: str
    """As a person wrote it."""


def source_of(path: Path) -> Source:
    """A link that a person names is followed; those in a folder are not. Raises OSError and TreeError."""
    real, name, left_out = path.resolve(strict=True), path.name or path.absolute().name, LeftOut()
    if real.is_dir():
        tree = Tree(str(real))
        return Source(tree, list(tree.walk("", left_out)), left_out, True, name)
    tree = Tree(str(real.parent))
    with tree.reading(real.name) as opened:
        about = os.fstat(opened)
    return Source(tree, [Found(real.name, about.st_size, bool(about.st_mode & stat.S_IXUSR))], left_out, False, name)
