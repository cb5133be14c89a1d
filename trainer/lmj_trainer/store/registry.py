"""The stores, by the scheme of a place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.buckets import FORMS, scheme_of
from lmj_api.layout import Layout
from lmj_trainer.errors import UserError
from lmj_trainer.store import posix
from lmj_trainer.store.port import Ref

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec


def _bucket(uri: str) -> Ref:
    try:
        from lmj_trainer.store import buckets
    except ImportError as error:
        raise UserError(f"{uri}: {error.name} is not installed here: pip install 'livemigrationjob[storage]'") from error
    return buckets.open_bucket(uri)


def _share(uri: str) -> Ref:
    try:
        from lmj_trainer.store import azfile
    except ImportError as error:
        raise UserError(f"{uri}: {error.name} is not installed here: pip install 'livemigrationjob[storage]'") from error
    return azfile.open_share(uri)


STORES: dict[str, Callable[[str], Ref]] = {
    "": lambda place: posix.folder(Path(place)),
    **dict.fromkeys(FORMS, _bucket),
    "azfile": _share,
}
"""From a scheme (``""``: a path) to what opens a place that has it."""


def open_place(place: str) -> Ref:
    """The folder at ``place``, a path or a URI. Raises UserError for a scheme that is not known."""
    scheme = scheme_of(place)
    if scheme not in STORES:
        raise UserError(f"{place}: {scheme}:// is not known here: use {', '.join(f'{s}://' if s else 'a path' for s in STORES)}")
    return STORES[scheme](place)


def checkpoints_of(spec: JobSpec) -> Ref:
    """Where a job's checkpoints lie. Raises UserError where that kind of place cannot be opened here."""
    layout = Layout.of(spec)
    return open_place(layout.bucket or str(layout.checkpoints))
