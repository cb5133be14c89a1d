"""A job's name as a LiveMigrationJob may have it."""

import hashlib
import re
from typing import Final

from lmj_operator.convert.fields import Object, mapping, text
from lmj_operator.convert.notes import ConvertError, Notes

_LONGEST: Final = 40
_DIGITS: Final = 6
_NOT_KEPT: Final = "kubectl.kubernetes.io/"


def metadata(of: Object, notes: Notes) -> Object:
    """The metadata of the result. Raises ConvertError."""
    name = text(of, "name", "metadata") or (text(of, "generateName", "metadata") or "").rstrip("-")
    if not name:
        raise ConvertError("metadata.name: missing: give the job a name")
    if "name" not in of:
        notes.changed("metadata.generateName", f"a LiveMigrationJob has a name: {name}")
    made: Object = {"name": short(name)}
    if made["name"] != name:
        notes.changed("metadata.name", f"at most {_LONGEST} small letters, digits and hyphens: {made['name']}")
    if (namespace := text(of, "namespace", "metadata")) is not None:
        made["namespace"] = namespace
    for key in ("labels", "annotations"):
        kept = {name: value for name, value in mapping(of, key, "metadata").items() if not name.startswith(_NOT_KEPT)}
        if kept:
            made[key] = kept
    return made


def short(name: str) -> str:
    """``name`` with letters that are allowed alone; one that is too long is cut, with the first digits of its digest behind it."""
    clean = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "job"
    if len(clean) <= _LONGEST:
        return clean
    return f"{clean[: _LONGEST - _DIGITS - 1].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}"
