"""The folder that a model is exported to: whole or not there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from lmj_api.layout import Layout
from lmj_trainer.durable import clear_sites, publish
from lmj_trainer.errors import UserError


def require_free(folder: Path, layout: Layout) -> None:
    """Raise UserError unless ``folder`` is absent or empty, and none that the job with ``layout`` writes by itself."""
    own = (
        layout.model,
        layout.int8,
        layout.adapter,
        layout.checkpoints,
        layout.cache,
        layout.pretrained,
        layout.fetched,
        layout.tensorboard,
    )
    for path in (*own, layout.trackers, layout.logs, layout.run):
        if folder.is_relative_to(path):
            raise UserError(f"--to {folder}: {path} is what the job itself writes: choose another folder")
    if folder == layout.output:
        raise UserError(f"--to {folder} is the job's output folder: choose another folder")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"--to {folder} is a file: choose a folder that is not there yet")
    if any(folder.iterdir()):
        raise UserError(f"--to {folder} is not empty: choose a folder that is not there yet")
    if folder.is_mount() or folder == Path.cwd():
        # It is replaced by one that was built aside.
        raise UserError(f"--to {folder} is a volume, or the folder of this shell: choose one inside, such as {folder / 'model'}")


@contextmanager
def site_of(folder: Path) -> Iterator[Path]:
    """An empty folder on the file system of ``folder``, which is removed afterwards. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.exporting-"
    clear_sites(folder.parent, prefix, time.time())
    site = Path(mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield site
    finally:
        shutil.rmtree(site, ignore_errors=True)


def settle(built: Layout, folder: Path) -> Path | None:
    """Have what is in ``built`` take the name ``folder``, the model with the adapter in it. Where the adapter is; None: there is none.

    Raises OSError, and UserError when another was faster.
    """
    adapter = folder / built.adapter.name if built.adapter.is_dir() else None
    if adapter is not None:
        built.adapter.rename(built.model / adapter.name)
    publish(built.model, folder)
    if built.model.exists():
        raise UserError(f"--to {folder} is not empty any more: choose another folder")
    return adapter
