"""Places in object storage, as a spec names them."""

import re

FORMS = {"s3": "s3://BUCKET/FOLDER", "azblob": "azblob://CONTAINER/FOLDER", "gs": "gs://BUCKET/FOLDER"}
"""How a place is written, by its scheme."""
_PLACE = re.compile(r"([a-z0-9]+)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/([^\x00-\x1f\x7f]*))?")


def scheme_of(place: str) -> str:
    """What stands before ``://`` in ``place``; ``""``: it is a path."""
    scheme, found, _ = place.partition("://")
    return scheme if found else ""


def in_bucket(place: str) -> bool:
    """Whether ``place`` has the scheme of a bucket; it may be wrong in the rest."""
    return scheme_of(place) in FORMS


def split(uri: str) -> tuple[str, str, str]:
    """The scheme, the bucket and the folder in it (``""``: the whole bucket) of ``uri``. Raises ValueError, which says how it is written."""
    match = _PLACE.fullmatch(uri.rstrip("/"))
    if match is None or match[1] not in FORMS or any(part in ("", ".", "..") for part in (match[3] or "x").split("/")):
        raise ValueError(f"{uri}: write {FORMS.get(scheme_of(uri), ' or '.join(FORMS.values()))}")
    return match[1], match[2], match[3] or ""
