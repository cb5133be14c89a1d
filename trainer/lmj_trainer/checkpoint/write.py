"""How a checkpoint comes to be: each rank puts its file in place, and when all have, one of them calls :func:`commit_manifest`.

The manifest is written last. It is the moment at which the checkpoint exists.
"""

from lmj_api.manifest import Manifest
from lmj_api.names import checkpoint_name
from lmj_api.run import Run
from lmj_trainer.store.port import Ref

MANIFEST = "manifest.json"
"""File name of a checkpoint's manifest."""


def folder_of(root: Ref, step: int, view: int, run: Run | None = None) -> Ref:
    """The folder for the checkpoint of ``step`` by ``view`` of ``run`` in ``root``."""
    return root / checkpoint_name(step, view, run)


def commit_manifest(folder: Ref, manifest: Manifest) -> None:
    """Make ``folder`` a checkpoint: its files are all in place, now the manifest is written, durably and atomically.

    Raises ValueError when the folder's name or a file's size is not what the manifest says, OSError when a file is missing.
    """
    if folder.name != (own := checkpoint_name(manifest.step, manifest.view, manifest.run)):
        raise ValueError(f"{folder} is not the folder of step {manifest.step} and view {manifest.view}: that is {own}")
    if not manifest.files:
        raise ValueError(f"{folder}: a manifest without files is no checkpoint")
    for file in manifest.files:
        size = (folder / file.name).entry().size
        if size != file.size:
            raise ValueError(f"{folder / file.name} has {size} bytes, the manifest says {file.size}")
    (folder / MANIFEST).put([(manifest.to_json() + "\n").encode()])
