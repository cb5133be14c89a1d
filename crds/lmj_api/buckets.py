"""Places in object storage, as a spec names them."""

import re

FORMS = {"s3": "s3://BUCKET/FOLDER", "azblob": "azblob://CONTAINER/FOLDER"}
"""How a place is written, by its scheme."""
_PLACE = re.compile(r"([a-z0-9]+)://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^\x00-\x1f\x7f]*))?")


def in_bucket(place: str) -> bool:
    """Whether ``place`` has the scheme of a bucket; it may be wrong in the rest."""
    return place.partition("://")[0] in FORMS and "://" in place


def split(uri: str) -> tuple[str, str, str]:
    """The scheme, the bucket and the folder in it (``""``: the whole bucket) of ``uri``. Raises ValueError, which says how it is written."""
    match = _PLACE.fullmatch(uri.rstrip("/"))
    if match is None or match[1] not in FORMS or any(part in ("", ".", "..") for part in (match[3] or "x").split("/")):
        raise ValueError(f"{uri}: write {FORMS.get(uri.partition('://')[0], ' or '.join(FORMS.values()))}")
    return match[1], match[2], match[3] or ""
