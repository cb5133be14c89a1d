"""From a parsed YAML document to a job, with one clear line for each mistake.

The caller parses the YAML (this package imports no parser). Values are checked as strictly as a cluster's API server would, so a
file that passes here means the same there: ``"16"`` is text and no number, an unknown field is an error.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from lmj_api.complaints import complaints, dotted
from lmj_api.fields import FieldType, field_type
from lmj_api.names import API_VERSION, KIND
from lmj_api.nearest import nearest
from lmj_api.overrides import override
from lmj_api.places import resolve
from lmj_api.problems import SpecError, show
from lmj_api.size import check_size
from lmj_api.spec.job import LiveMigrationJob

__all__ = ["SpecError", "load_job", "read_document"]

# YAML 1.1 parsers read 5e-5 as text for want of a dot; an API server's reads a number.
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+")
_LARGEST = (1 << 64) - 1


def load_job(
    document: object, *, base: Path, outputs: Path | None = None, sets: Sequence[str] = (), here: bool = True
) -> LiveMigrationJob:
    """The job that ``document`` (a parsed YAML file) describes, with ``sets`` applied and its paths absolute.

    ``sets``: ``PATH=VALUE`` overrides, see :func:`lmj_api.overrides.override`. ``base``: folder of the file, for all relative paths.
    ``outputs``: another folder for ``output.path`` and ``checkpoint.path``, where what is read and what is written are on two volumes.
    ``here``: the paths are of this machine, where a name that is there is a path. Else (the paths of a pod) nothing is looked up: a
    path is what is absolute, begins with ``./`` or ``../``, or ends as a data file does.
    Raises :class:`SpecError` with a line for each mistake (``str()`` has five at most), and with one for what is too large to be looked at.
    """
    job = read_document(document, sets)
    return job.model_copy(update={"spec": resolve(job.spec, base.absolute(), (outputs or base).absolute(), here)})


def read_document(document: object, sets: Sequence[str] = ()) -> LiveMigrationJob:
    """The same with paths as they are written. Raises :class:`SpecError`."""
    if document is None:
        raise SpecError("the file is empty; a job has apiVersion, kind, metadata and spec")
    if not isinstance(document, Mapping):
        raise SpecError(f"the job's file holds {show(document)}; a mapping with apiVersion, kind, metadata and spec is needed")
    check_size(document)
    _check_kind(document)
    plain = _plain(override({**document}, sets), field_type(LiveMigrationJob), ())
    try:
        return LiveMigrationJob.model_validate_json(json.dumps(plain), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(*complaints(error)) from None


def _check_kind(document: Mapping[object, object]) -> None:
    """Say in one line that a file is not for us, before anything inside is complained about."""
    for key, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = document.get(key)
        if value == right:
            continue
        if value is None:
            near = nearest(key, (other for other in document if isinstance(other, str)))
            raise SpecError(f"{key}: missing; write {key}: {right}" + (f" (not {near})" if near else ""))
        raise SpecError(f"{key}: {show(value)} is not {right}")


def _plain(value: object, kind: FieldType, path: tuple[str | int, ...]) -> object:
    """``value`` as JSON can carry it. Raises SpecError for what YAML can say and JSON cannot (dates, infinity, keys that are no text)."""
    if isinstance(value, str):  # first, because most values are
        return float(value) if kind.is_float and _EXPONENT.fullmatch(value) else value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(f"{dotted(path) or 'the file'}: the key {show(key)} is no text; put it in quotes")
        return {key: _plain(item, kind.child(key), (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = kind.item()
        return [_plain(item, items, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{dotted(path)}: {value} is no finite number")
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise SpecError(f"{dotted(path)}: a whole number of more than 64 bits")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise SpecError(f"{dotted(path)}: {show(value)} is read as a {type(value).__name__}; put it in quotes")
