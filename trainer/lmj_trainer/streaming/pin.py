"""The index that a run began with, kept in its output folder: whatever happens to the files, rows and their order stay what they were."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from xxhash import xxh3_128

from lmj_api.layout import Layout
from lmj_trainer.agreed import agreed
from lmj_trainer.durable import clear_sites, publish
from lmj_trainer.errors import UserError
from lmj_trainer.hub import patiently
from lmj_trainer.once import once
from lmj_trainer.pretrained import SITE
from lmj_trainer.store.registry import open_place
from lmj_trainer.streaming.index import Index
from lmj_trainer.streaming.source import FIELD, Open, Source
from lmj_trainer.streaming.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_api.spec import JobSpec

_INDEX = "index.json"


def kept_index(spec: JobSpec) -> Index | None:
    """That of the run, if there is one. Asks nobody. UserError: it cannot be read."""
    path = _folder(spec) / _INDEX
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return Index.from_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def index_of(
    spec: JobSpec, say: Callable[[str], None], who: str | None = None, patience: float | None = None, open_: Open = open_place
) -> Index:
    """That of the run; at first, what is in ``dataset.source`` now. Of several processes one looks, and the others wait. ``who``: this
    process, see :func:`once`. ``patience``: seconds for which storage that does not answer is asked again (most of the time that a worker
    has to start).

    Raises UserError: something is wrong with the files, or another machine of the job has found others; OutageError: storage does not answer.
    """
    seconds = 0.8 * spec.recovery.start_timeout_seconds
    asking, folder = seconds if patience is None else patience, _folder(spec)
    index = kept_index(spec)
    if index is None:
        source = Source.open(spec.dataset.source, open_)

        def look(tell: Callable[[str], None]) -> None:
            tell(f"looking at {source.uri}")
            _keep(folder, patiently(lambda: survey(spec, source, tell), asking, tell))

        once(folder, look, source.uri, say, seconds, who)
        index = kept_index(spec)
        if index is None:
            raise UserError(f"{folder} cannot be kept: make room there, or choose another output.path")
    assert spec.dataset.streaming is not None
    index.require_room(spec.dataset.streaming)  # which may be another than at first
    results = Layout.of(spec).results
    if results is not None:
        patiently(partial(_require_agreed, index, results, folder), asking, say)
    return index


def _folder(spec: JobSpec) -> Path:
    """What is read of which files is another index."""
    read = "\0".join([spec.dataset.source, *spec.dataset.columns, "", spec.dataset.label or ""])
    return Layout.of(spec).fetched / xxh3_128(f"stream {read}".encode()).hexdigest()


def _keep(folder: Path, index: Index) -> None:
    """Aside first. The first of several wins. Raises UserError where there is no room."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_sites(folder.parent, SITE, time.time())
        site = Path(mkdtemp(prefix=SITE, dir=folder.parent))
        try:
            (site / _INDEX).write_bytes(index.to_json())
            publish(site, folder)
        finally:
            shutil.rmtree(site, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror or error}: make room there, or choose another output.path"
        ) from error


def _require_agreed(index: Index, results: str, folder: Path) -> None:
    """Raise UserError where another machine of the job has found other rows. What is here goes then."""
    if agreed(results, f"{FIELD} {index.source}", index.digest) != index.digest:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(f"{FIELD} {index.source}: is not what the run began with: put it back, or choose another output.path")


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read ({error}): remove its folder, and the files are looked at again")
