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

from lmj_api.complaints import complaints
from lmj_api.fields import FieldType, field_type
from lmj_api.names import API_VERSION, KIND
from lmj_api.nearest import nearest
from lmj_api.overrides import override
from lmj_api.problems import SpecError, show
from lmj_api.spec.job import JobSpec, LiveMigrationJob

__all__ = ["SpecError", "load_job"]

DATA_SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".json", ".parquet"})
"""Extensions that make a dataset's ``source`` a file and no hub id."""

# YAML 1.1 parsers read 5e-5 as text for want of a dot; an API server's reads a number.
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+")
_DEEPEST = 64


def load_job(
    document: object, *, base: Path, outputs: Path | None = None, sets: Sequence[str] = (), here: bool = True
) -> LiveMigrationJob:
    """The job that ``document`` (a parsed YAML file) describes, with ``sets`` applied and its paths absolute.

    ``sets``: ``PATH=VALUE`` overrides, see :func:`lmj_api.overrides.override`. ``base``: folder of the file, for all relative paths.
    ``outputs``: another folder for ``output.path`` and ``checkpoint.path``, where what is read and what is written are on two volumes.
    ``here``: the paths are of this machine, where a name that is there is a path. Else (the paths of a pod) nothing is looked up: a
    path is what is absolute, begins with ``./`` or ``../``, or ends as a data file does.
    Raises :class:`SpecError` with a line for each mistake (five at most).
    """
    if document is None:
        raise SpecError("the file is empty; a job has apiVersion, kind, metadata and spec")
    if not isinstance(document, Mapping):
        raise SpecError(f"the job's file holds {show(document)}; a mapping with apiVersion, kind, metadata and spec is needed")
    _check_kind(document)
    plain = _plain(override({**document}, sets), field_type(LiveMigrationJob), "")
    try:
        job = LiveMigrationJob.model_validate_json(json.dumps(plain), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(*complaints(error)) from None
    return job.model_copy(update={"spec": _resolve(job.spec, base.absolute(), (outputs or base).absolute(), here)})


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


def _plain(value: object, kind: FieldType, path: str) -> object:
    """``value`` as JSON can carry it. Raises SpecError for what YAML can say and JSON cannot (dates, infinity, keys that are no text)."""
    if path.count(".") > _DEEPEST:
        raise SpecError(f"{path[:40]}...: nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(f"{path or 'the file'}: the key {show(key)} is no text; put it in quotes")
        return {key: _plain(item, kind.child(key), f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, kind.item(), f"{path}[{index}].") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{path}: {value} is no finite number")
    if isinstance(value, str) and kind.is_float and _EXPONENT.fullmatch(value):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SpecError(f"{path}: {show(value)} is read as a {type(value).__name__}; put it in quotes")


def _resolve(spec: JobSpec, base: Path, outputs: Path, here: bool) -> JobSpec:
    """``spec`` with absolute paths; hub ids and split names stay as they are."""
    splits = spec.dataset.splits
    if not here:
        _no_home(spec)
    dataset = spec.dataset.model_copy(
        update={
            "source": _data_path(spec.dataset.source, base, here),
            "splits": splits.model_copy(
                update={
                    "validation": splits.validation and _split(splits.validation, base, here),
                    "test": splits.test and _split(splits.test, base, here),
                }
            ),
        }
    )
    source = spec.model.source
    if source is not None and ((base / _home(source)).is_dir() if here else _looks_like_path(source)):
        source = _absolute(source, base)
    return spec.model_copy(
        update={
            "dataset": dataset,
            "model": spec.model.model_copy(update={"source": source}),
            "output": spec.output.model_copy(update={"path": _absolute(spec.output.path, outputs)}),
            "checkpoint": spec.checkpoint.model_copy(
                update={"path": _absolute(spec.checkpoint.path, outputs) if spec.checkpoint.path else None}
            ),
        }
    )


def _data_path(name: str, base: Path, here: bool) -> str:
    """The file or folder that ``name`` says, or ``name`` itself: a hub id."""
    path = _home(name)
    there = (base / path).exists() if here else _looks_like_path(name)
    return _absolute(name, base) if path.suffix.lower() in DATA_SUFFIXES or there else name


def _split(name: str, base: Path, here: bool) -> str:
    """The file that ``name`` says, or ``name`` itself: a split. A folder that happens to be called ``test`` is no split."""
    path = _home(name)
    there = (base / path).is_file() if here else _looks_like_path(name)
    return _absolute(name, base) if path.suffix.lower() in DATA_SUFFIXES or there else name


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../"))


def _no_home(spec: JobSpec) -> None:
    named = {
        "dataset.source": spec.dataset.source,
        "dataset.splits.validation": spec.dataset.splits.validation,
        "dataset.splits.test": spec.dataset.splits.test,
        "model.source": spec.model.source,
        "output.path": spec.output.path,
        "checkpoint.path": spec.checkpoint.path,
    }
    wrong = [
        f"spec.{field}: {name!r}: a pod has no home folder; write a path on one of its volumes"
        for field, name in named.items()
        if name is not None and name.startswith("~")
    ]
    if wrong:
        raise SpecError(*wrong)


def _home(name: str) -> Path:
    return Path.home() / name[2:] if name.startswith("~/") else Path(name)


def _absolute(name: str, folder: Path) -> str:
    """``name`` in ``folder``, with ``.`` and ``..`` taken out as a shell's ``cd -L`` would."""
    parts: list[str] = []
    path = folder / _home(name)
    for part in path.parts[1:]:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return str(Path(path.anchor, *parts))
