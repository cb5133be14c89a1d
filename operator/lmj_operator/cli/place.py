"""Which run a command is about: one that is named by its job's file, or by its output folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmj_api.layout import Layout


def layout_of(target: Path, sets: Sequence[str]) -> "Layout":
    """The layout of the run in the folder ``target``, or of the job in that file. Raises CommandError."""
    from lmj_api.layout import Layout
    from lmj_operator.cli.load import read_job

    return Layout(target, target / "checkpoints") if target.is_dir() else Layout.of(read_job(target, sets).spec)
