"""Places in object storage and in shares of files, as a spec names them."""

import re

FORMS = {
    "s3": "s3://BUCKET/FOLDER",
    "azblob": "azblob://CONTAINER/FOLDER",
    "gs": "gs://BUCKET/FOLDER",
    "azfile": "azfile://SHARE/FOLDER",
}
"""How a place is written, by its scheme."""
_PLACE = re.compile(r"([a-z0-9]+)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/([^\x00-\x1f\x7f]*))?")
# https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-shares--directories--files--and-metadata
_SHARE = re.compile(r"(?!.*--)[a-z0-9-]+")
_REFUSED = re.compile(r'["\\:|<>*?]')
_DEVICE = re.compile(r"(con|prn|aux|nul|clock\$|(lpt|com)[1-9])")


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
    if match[1] == "azfile" and (problem := _unfit(match[2], match[3] or "")):
        raise ValueError(f"{uri}: {problem}")
    return match[1], match[2], match[3] or ""


def _unfit(share: str, folder: str) -> str:
    """What Azure Files would refuse, or would not tell from another name; ``""``: nothing."""
    if not _SHARE.fullmatch(share):
        return f"a share's name has small letters, digits and single hyphens alone: write {FORMS['azfile']}"
    for name in folder.split("/"):
        if found := _REFUSED.search(name):
            return f"Azure Files takes no {found[0]} in a name: leave it out"
        if name != name.lower():
            return f"Azure Files does not tell capitals from small letters: write {name.lower()}"
        if name.endswith((".", " ")):
            return "Azure Files takes no dot and no space at the end of a name: leave it out"
        if len(name) > 255 or _DEVICE.fullmatch(name):
            return f"Azure Files takes no folder of that name: {name[:20]}"
    return ""
