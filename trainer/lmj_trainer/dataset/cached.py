"""A folder of the cache, built aside and renamed into place: it is whole or not there."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from lmj_trainer.durable import clear_sites, publish
from lmj_trainer.errors import UserError

_SITE = ".building-"


def build_into(cache: Path, digest: str, build: Callable[[Path], object]) -> None:
    """Have ``build`` fill what becomes the folder ``digest`` of ``cache``. Raises as it does, and UserError when there can be no cache."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the cache folder {cache}: {error.strerror}") from error
    clear_sites(cache, _SITE, time.time())
    site = Path(mkdtemp(prefix=f"{_SITE}{digest}-", dir=cache))
    try:
        build(site)
        publish(site, cache / digest)
    finally:
        shutil.rmtree(site, ignore_errors=True)
