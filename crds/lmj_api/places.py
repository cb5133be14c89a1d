"""Where a job's data, model and results are: the names in its spec, as absolute paths."""

import hashlib
import re
from pathlib import Path
from shutil import which

from lmj_api.buckets import in_bucket, split
from lmj_api.nearest import did_you_mean
from lmj_api.problems import SpecError
from lmj_api.spec.command import Command
from lmj_api.spec.dataset import Dataset
from lmj_api.spec.job import JobSpec
from lmj_api.spec.model import Model
from lmj_api.spec.output import Output

DATA_SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".json", ".parquet"})
"""Extensions that make a dataset's ``source`` a file and no hub id."""

_IN_BUCKETS = frozenset(
    {"dataset.source", "dataset.splits.validation", "dataset.splits.test", "model.source", "checkpoint.path", "output.path"}
)
"""Fields whose place may be in object storage."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def resolve(spec: JobSpec, base: Path, outputs: Path, here: bool) -> JobSpec:
    """``spec`` with absolute paths; hub ids and split names stay as they are. ``base``, ``outputs``: the folders of what is read and of
    what is written. ``here``: the paths are of this machine, where a name that is there is a path. Raises :class:`SpecError`.
    """
    _refuse_schemes(spec)
    if not here:
        _refuse_home(spec)
    written = {
        "output": spec.output.model_copy(update=_output(spec.output, outputs)),
        "checkpoint": spec.checkpoint.model_copy(
            update={"path": _place(spec.checkpoint.path, outputs) if spec.checkpoint.path else None}
        ),
    }
    read = _trained(spec, base, here) if spec.command is None else {"command": _command(spec.command, base, outputs, here)}
    return spec.model_copy(update=read | written)


def _output(output: Output, outputs: Path) -> dict[str, str]:
    if not in_bucket(output.path):
        return {"path": _absolute(output.path, outputs)}
    place = output.path.rstrip("/")
    return {"path": place, "scratch": _absolute(output.scratch or place.rpartition("/")[2], outputs)}


def _command(command: Command, base: Path, outputs: Path, here: bool) -> Command:
    """With its places absolute. Raises :class:`SpecError` when there is no such program, or folder, ``here``."""
    folder = Path(_absolute(command.working_dir or ".", base))
    if here:
        _require_program(command.args[0], folder)
    places = {"checkpoints": command.checkpoints, "progress_file": command.progress_file}
    made = {name: _absolute(path, outputs) if path is not None else None for name, path in places.items()}
    return command.model_copy(update={"working_dir": str(folder), **made})


def _require_program(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise SpecError(f"spec.command.workingDir: there is no folder {folder}{_near(folder)}")
    if name == "-m":  # whether a module can be found is known to who runs it
        return
    path = folder / name
    if not name.endswith(".py") and "/" not in name:
        if which(name) is None:
            hint = f": for a Python file write {name}.py" if path.with_name(f"{name}.py").is_file() else ""
            raise SpecError(f"spec.command.args: there is no program {name} on the PATH{hint}")
    elif not path.is_file():
        raise SpecError(f"spec.command.args: there is no file {path}{_near(path)}")


def _near(path: Path) -> str:
    """The name beside ``path`` that may be meant."""
    return did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""


def _trained(spec: JobSpec, base: Path, here: bool) -> dict[str, Dataset | Model]:
    """The dataset and the model, with absolute paths."""
    splits = spec.dataset.splits
    dataset = spec.dataset.model_copy(
        update={
            "source": _absolute(spec.dataset.source, base)
            if spec.model.is_script
            else _data_path(spec.dataset.source, base, here, hub=spec.dataset.streaming is None),
            "splits": splits.model_copy(
                update={
                    "validation": splits.validation and _split(splits.validation, base, here),
                    "test": splits.test and _split(splits.test, base, here),
                }
            ),
        }
    )
    source = spec.model.source
    if source is not None and in_bucket(source):
        source = source.rstrip("/")
    elif source is not None and ((base / _home(source)).is_dir() if here else _looks_like_path(source)):
        source = _absolute(source, base)
    return {"dataset": dataset, "model": spec.model.model_copy(update={"source": source, **_python(spec.model, base, here)})}


def _python(model: Model, base: Path, here: bool) -> dict[str, str]:
    """The file of ``model.python``, absolute, and its digest where it is ``here``. Raises :class:`SpecError`: there is none, or it is another."""
    if model.python_file is None:
        return {}
    name, kind = model.python_file
    path = _absolute(name, base)
    if not here:
        return {"python": f"{path}:{kind}"}
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise SpecError(f"spec.model.python: {path} cannot be read: {error.strerror}{_near(Path(path))}") from error
    if model.python_sha256 not in (None, digest):
        raise SpecError(f"spec.model.pythonSha256: {path} has another content, of {digest}: put it back, or leave the field out")
    return {"python": f"{path}:{kind}", "python_sha256": digest}


def _data_path(name: str, base: Path, here: bool, hub: bool) -> str:
    """The file or folder that ``name`` says, or ``name`` itself: a hub id, where it may be one."""
    if in_bucket(name):
        return name.rstrip("/")
    path = _home(name)
    there = (base / path).exists() if here else _looks_like_path(name)
    return _absolute(name, base) if path.suffix.lower() in DATA_SUFFIXES or there or not hub else name


def _split(name: str, base: Path, here: bool) -> str:
    """The file that ``name`` says, or ``name`` itself: a split. A folder that happens to be called ``test`` is no split."""
    if in_bucket(name):
        return name.rstrip("/")
    path = _home(name)
    there = (base / path).is_file() if here else _looks_like_path(name)
    return _absolute(name, base) if path.suffix.lower() in DATA_SUFFIXES or there else name


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../"))


def _named(spec: JobSpec) -> dict[str, str]:
    """What the spec says of places, by field."""
    named = {
        "dataset.source": spec.dataset.source or None,
        "dataset.splits.validation": spec.dataset.splits.validation,
        "dataset.splits.test": spec.dataset.splits.test,
        "model.source": spec.model.source,
        "model.python": spec.model.python,
        "output.path": spec.output.path,
        "output.scratch": spec.output.scratch,
        "checkpoint.path": spec.checkpoint.path,
    }
    if (command := spec.command) is not None:
        named |= {
            "command.workingDir": command.working_dir,
            "command.checkpoints": command.checkpoints,
            "command.progressFile": command.progress_file,
        }
    return {field: name for field, name in named.items() if name is not None}


def _refuse_schemes(spec: JobSpec) -> None:
    """As a path, ``s3://bucket/x`` would be a folder ``s3:`` here: results would be where nobody looks for them."""
    named = _named(spec)
    places = {field: name for field, name in named.items() if field in _IN_BUCKETS and in_bucket(name)}
    wrong = [
        f"spec.{field}: {name!r}: {name.partition('://')[0]}:// cannot be read or written yet; write a path"
        for field, name in named.items()
        if _SCHEME.match(name) and field not in places
    ]
    wrong += [
        f"spec.{field}: {problem}" for field, name in places.items() if (problem := _wrong_in_bucket(field, name)) is not None
    ]
    wrong += [
        f"spec.{part}.revision: {places[f'{part}.source']} is in object storage, which has no revisions: leave it out"
        for part, revision in (("dataset", spec.dataset.revision), ("model", spec.model.revision))
        if revision is not None and f"{part}.source" in places
    ]
    scripted = spec.strategy.stateless or spec.model.is_script
    wrong += _wrong_results(spec.output, scripted, in_bucket(spec.output.path))
    if not places and spec.checkpoint.secret_name is not None:
        wrong.append("spec.checkpoint.secretName: no place of this job is in object storage: leave it out")
    if wrong:
        raise SpecError(*wrong)


def _wrong_in_bucket(field: str, name: str) -> str | None:
    """What is wrong with ``name``, a place in object storage, as what ``field`` names; None: nothing."""
    try:
        _, _, folder = split(name)
    except ValueError as error:
        return str(error)
    if field == "checkpoint.path":
        return None
    if not folder:
        kind = "file or folder" if field.startswith("dataset.") else "folder"
        return f"{name}: this is a whole bucket: name a {kind} in it"
    if field.startswith("dataset.splits.") and Path(folder).suffix.lower() not in DATA_SUFFIXES:
        return f"{name}: name a file there ({', '.join(sorted(DATA_SUFFIXES))})"
    return None


def _wrong_results(output: Output, scripted: bool, in_a_bucket: bool) -> list[str]:
    """What does not go together with results where they are. ``scripted``: they are those of a script."""
    if not in_a_bucket:
        return (
            ["spec.output.scratch: output.path is no place in object storage: leave it out"] if output.scratch is not None else []
        )
    wrong = [
        f"spec.output.trackers[{number}]: is files in the output folder, and output.path {output.path} is in object storage: "
        "name a server (uri or space), or a path"
        for number, tracker in enumerate(output.trackers)
        if tracker.keeps_files
    ]
    if scripted:
        wrong.append(f"spec.output.path: {output.path}: a script writes into a folder: write a path")
    return wrong


def _refuse_home(spec: JobSpec) -> None:
    wrong = [
        f"spec.{field}: {name!r}: a pod has no home folder; write a path on one of its volumes"
        for field, name in _named(spec).items()
        if name.startswith("~")
    ]
    if wrong:
        raise SpecError(*wrong)


def _home(name: str) -> Path:
    return Path.home() / name[2:] if name.startswith("~/") else Path(name)


def _place(name: str, folder: Path) -> str:
    """``name``, a path, in ``folder``; one in object storage as it is."""
    return name.rstrip("/") if in_bucket(name) else _absolute(name, folder)


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
