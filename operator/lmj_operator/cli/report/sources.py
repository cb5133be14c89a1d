"""The files of a run, read: the only part of the report that touches the disk. Raises CommandError where one cannot be used."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lmj_api.manifest import Manifest
from lmj_api.names import KIND, parse_checkpoint_name
from lmj_api.problems import show
from lmj_api.protocol import CheckpointInfo, Evaluation
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import JobStatus
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.report.series import Record

_LARGEST = 2**53
"""No count in a run is larger; plots are drawn with floats, which tell smaller ones apart."""
_MANIFEST_BYTES = 1 << 20
_MOST_REPLICAS = 1024


def read_records(path: Path) -> tuple[list[Record], int]:
    """The lines of ``metrics.jsonl`` that say a step and a loss, and how many do not; nothing when there is no file."""
    records, wrong = [], 0
    try:
        if not path.is_file():
            return [], 0
        with path.open("rb") as file:
            for line in file:
                record = _record(line)
                wrong += record is None
                records += [] if record is None else [record]
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    return records, wrong


def _record(line: bytes) -> Record | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    step, loss, time = value.get("step"), _float(value.get("loss")), _float(value.get("time"))
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= _LARGEST or loss is None:
        return None
    rate, replicas = _float(value.get("learningRate")), value.get("replicas")
    known = replicas if isinstance(replicas, int) and not isinstance(replicas, bool) and 0 < replicas <= _MOST_REPLICAS else None
    return Record(step, loss, math.nan if time is None else time, math.nan if rate is None else rate, known)


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_evaluations(path: Path) -> list[Evaluation]:
    """The evaluations in ``evaluation.json``; none when there is no file."""
    value = _json(path)
    if value is None:
        return []
    if not isinstance(value, list):
        raise CommandError(f"{path}: holds {show(value)}, not a list of evaluations")
    try:
        return TypeAdapter(list[Evaluation]).validate_python(value)
    except ValidationError as error:
        raise CommandError(f"{path}: not evaluations that this version can read: {_first(error)}") from error


def read_status(path: Path) -> JobStatus | None:
    """The status that a run on this machine stored; None: there is none."""
    value = _json(path)
    return None if value is None else _status(path, value)


def read_object(path: Path) -> tuple[LiveMigrationJob | None, JobStatus]:
    """The job (None: it is not in it) and its status, of what ``kubectl get lmj NAME -o json`` printed; a status alone does too."""
    value = _json(path)
    if value is None:
        raise CommandError(f"{path}: there is no such file: make it with kubectl get lmj NAME -o json")
    items = value.get("items") if isinstance(value, dict) else None
    if isinstance(items, list):
        if len(items) != 1:
            raise CommandError(f"{path}: holds {len(items)} objects; name the job: kubectl get lmj NAME -o json")
        value = items[0]
    if not isinstance(value, dict):
        raise CommandError(f"{path}: holds {show(value)}, not what kubectl get lmj NAME -o json prints")
    if "kind" not in value:
        return None, _status(path, value)
    if value["kind"] != KIND:
        raise CommandError(f"{path}: holds a {show(value['kind'])}, not a {KIND}")
    return _job(path, value), _status(path, value.get("status") or {})


def read_stored_job(path: Path) -> LiveMigrationJob | None:
    """The job that ran, as the run stored it; None: it did not."""
    value = _json(path)
    return None if value is None else _job(path, value)


def read_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """The checkpoints in ``folder``, oldest first, by their manifests; their files are not read. None where there is no folder."""
    try:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from error
    return [_checkpoint(folder / name, step) for (step, _), name in sorted(_checkpoints(names))]


def _checkpoints(names: Iterable[str]) -> Iterator[tuple[tuple[int, int], str]]:
    for name in names:
        try:
            yield parse_checkpoint_name(name), name
        except ValueError:
            continue


def _checkpoint(folder: Path, step: int) -> CheckpointInfo:
    path = folder / "manifest.json"
    try:
        if not path.is_file():
            return CheckpointInfo(name=folder.name, step=step, problem="has no manifest: it was not finished")
        with path.open("rb") as file:
            manifest = Manifest.model_validate_json(file.read(_MANIFEST_BYTES))
        return CheckpointInfo(
            name=folder.name,
            step=step,
            size=sum(file.size for file in manifest.files),
            best=manifest.best,
            time=path.stat().st_mtime,
        )
    except OSError as error:
        return CheckpointInfo(name=folder.name, step=step, problem=f"its manifest: {error.strerror}")
    except ValidationError as error:
        return CheckpointInfo(name=folder.name, step=step, problem=f"its manifest: {_first(error)}")


def _job(path: Path, value: object) -> LiveMigrationJob:
    try:
        return LiveMigrationJob.model_validate(value)
    except ValidationError as error:
        raise CommandError(f"{path}: not a job that this version can read: {_first(error)}") from error


def _status(path: Path, value: object) -> JobStatus:
    try:
        return JobStatus.model_validate(value)
    except ValidationError as error:
        raise CommandError(f"{path}: not a job's status that this version can read: {_first(error)}") from error


def _json(path: Path) -> Any:
    """What is in ``path``; None: there is no such file."""
    try:
        if path.exists() and not path.is_file():
            raise CommandError(f"{path}: is no file")
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: not JSON (byte {error.start} is not UTF-8)") from error
    except json.JSONDecodeError as error:
        raise CommandError(f"{path}: not JSON (line {error.lineno}, column {error.colno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(
            f"{path}: not JSON that a run writes (nested too deep, or a number with thousands of digits)"
        ) from error
    if value is None:
        raise CommandError(f"{path}: holds null")
    _check_numbers(path, value)
    return value


def _check_numbers(path: Path, value: object) -> None:
    """Raises CommandError for a whole number that no run counts to: it would be no float, or too long to print."""
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as mapping:
                rest += mapping.values()
            case list() as items:
                rest += items
            case bool():
                continue
            case int() as number if abs(number) > _LARGEST:
                raise CommandError(f"{path}: holds a number beyond {_LARGEST}, which no run writes")


def _first(error: ValidationError) -> str:
    """The first mistake on one line; parts of it are of the file, so what a terminal would act on is not in it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{where}: {first['msg']}" if where else str(first["msg"])
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]
