"""From a job of another operator to the LiveMigrationJob that does the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from lmj_api.load import read_document
from lmj_api.names import API_VERSION, KIND
from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes.build.template_check import check_template
from lmj_operator.convert import pytorchjob, trainjob
from lmj_operator.convert.counts import processes, replicas
from lmj_operator.convert.fields import Object, mapping, number, plain, text, texts
from lmj_operator.convert.names import metadata
from lmj_operator.convert.notes import ConvertError, Notes, one_line
from lmj_operator.convert.pods import add_variables, gpus, literal_variables, template, trained_container, without_variable
from lmj_operator.convert.program import Program, program
from lmj_operator.convert.results import output_path
from lmj_operator.convert.source import Source

_READERS: Final = {
    (pytorchjob.API_VERSION, pytorchjob.KIND): pytorchjob.source,
    (trainjob.API_VERSION, trainjob.KIND): trainjob.source,
}
_LONGEST_ARGUMENT: Final = 4096
_THREADS: Final = "OMP_NUM_THREADS"
_MOST_THREADS: Final = 1024


@dataclass(frozen=True)
class Converted:
    """A job, as a document, and what is to be said of it, a line each."""

    document: Object
    notes: tuple[str, ...]


def kind_of_document(document: object) -> tuple[str, str] | None:
    """The ``apiVersion`` and ``kind`` of ``document``; None: it has none."""
    if not isinstance(document, Mapping):
        return None
    version, kind = document.get("apiVersion"), document.get("kind")
    return (version, kind) if isinstance(version, str) and isinstance(kind, str) else None


def is_convertible(document: object) -> bool:
    """Whether :func:`convert` takes ``document``."""
    return kind_of_document(document) in _READERS


def convert(document: object) -> Converted:
    """The LiveMigrationJob that does what ``document``, a PyTorchJob or a TrainJob, does. Raises ConvertError."""
    named = kind_of_document(document)
    read = _READERS.get(named) if named is not None else None
    if read is None:
        takes = " or ".join(f"{kind} ({version})" for version, kind in _READERS)
        raise ConvertError(f"kind: {' '.join(named) if named else 'missing'}: {takes} is needed")
    copy = plain(document)
    assert isinstance(copy, dict)
    notes = Notes()
    made = _made(read(copy, notes), notes)
    try:
        read_document(made)
        check_template(made["spec"].get("template"))
    except SpecError as error:
        raise ConvertError(f"no LiveMigrationJob: {one_line(error.lines[0])}") from error
    return Converted(made, tuple(notes.lines))


def _made(source: Source, notes: Notes) -> Object:
    where = source.where
    of_trainjob = source.where == "spec.trainer"
    pod_spec = mapping(source.pod, "spec", where)
    trained = trained_container(pod_spec, source.container, where if of_trainjob else f"{where}.spec")
    place = where if of_trainjob else f"{where}.spec.containers[{trained.get('name', '')}]"
    run = program(_words(trained, source, place), literal_variables(trained, place), notes, f"{place}.command")
    _require_short(run, place)
    meta = metadata(source.metadata, notes)
    parts = replicas(source, run.launch, notes)
    count = processes(source, run.launch, gpus(trained, place), notes)
    command: Object = {"args": list(run.args)}
    if (folder := _folder(trained, run, place, notes)) is not None:
        command["workingDir"] = folder
    if count != 1:
        command["processesPerNode"] = count
    pod, threads = _threads(source.pod, trained, run, place, notes)
    if threads is not None:
        command["threads"] = threads
    trained = trained_container(mapping(pod, "spec", where), source.container, where)
    made = template(pod, trained, notes, where, parts["replicas"] == 1)
    grace = made.get("spec", {}).pop("terminationGracePeriodSeconds", None)
    if grace is not None:
        command["saveSeconds"] = number({"it": grace}, "it", f"{where}.spec.terminationGracePeriodSeconds")
        notes.changed(f"{where}.spec.terminationGracePeriodSeconds", f"it is command.saveSeconds {grace}")
    add_variables(made, {name: value for name, value in run.variables.items() if name != _THREADS or threads is None})
    _tell_launcher(run, place, notes)
    _tell_pod(made, place, notes)
    output = output_path(meta["name"], made.get("spec", {}), run.args, notes, f"{place}.command")
    spec: Object = {"strategy": "Command", "command": command, "dataParallel": parts, "output": {"path": output}}
    fields = dict(source.fields)
    if (restarts := _restarts(source, run)) is not None:
        fields["recovery"] = {"maxRestarts": restarts, **fields.get("recovery", {})}
    spec |= fields
    if made:
        spec["template"] = made
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def _words(trained: Object, source: Source, where: str) -> list[str]:
    words = [*texts(trained, "command", where), *texts(trained, "args", where)]
    if not words or (not trained.get("command") and words[0].startswith("-")):
        raise ConvertError(f"{where}.command: missing: {source.entrypoint} says what runs; look it up and write it there")
    return words


def _require_short(run: Program, where: str) -> None:
    for word in run.args:
        if len(word) > _LONGEST_ARGUMENT:
            raise ConvertError(
                f"{where}.command: an argument of {len(word)} characters, more than {_LONGEST_ARGUMENT}: put the script into a file, of"
                " the image or of a ConfigMap"
            )


def _folder(trained: Object, run: Program, where: str, notes: Notes) -> str | None:
    """The folder that the script starts in; None: the operator's default."""
    own = text(trained, "workingDir", where)
    if run.working_dir is not None:
        folder = str(PurePosixPath(own or "") / run.working_dir)
    elif own is not None:
        return own
    else:
        script = PurePosixPath(run.args[0])
        if not script.is_absolute() or script.suffix != ".py":
            notes.check(
                f"{where}.workingDir", "not said: the image's WORKDIR, which is not in the file; write it into command.workingDir"
            )
            return None
        folder = str(script.parent)
        notes.changed(f"{where}.workingDir", f"not said: command.workingDir is the script's folder, {folder}")
    return folder


def _threads(pod: Object, trained: Object, run: Program, where: str, notes: Notes) -> tuple[Object, int | None]:
    """``pod`` without the number of threads, and the number."""
    found = run.variables.get(_THREADS) or literal_variables(trained, where).get(_THREADS)
    if run.launch is not None and run.launch.threads is not None:
        found = run.launch.threads
    if found is None or not found.isdecimal() or not 1 <= int(found) <= _MOST_THREADS:
        return pod, None
    spec = mapping(pod, "spec", where)
    containers: list[Any] = [without_variable(each, _THREADS) if each is trained else each for each in spec["containers"]]
    notes.changed(f"{where}.env[{_THREADS}]", f"it is command.threads {int(found)}")
    return {**pod, "spec": {**spec, "containers": containers}}, int(found)


def _restarts(source: Source, run: Program) -> int | None:
    told = run.launch.max_restarts if run.launch is not None else None
    if source.restarts is None and told is not None and told.isdecimal():
        return int(told)
    return source.restarts


def _tell_launcher(run: Program, where: str, notes: Notes) -> None:
    launch = run.launch
    if launch is None:
        return
    if launch.launcher is not None:
        notes.changed(f"{where}.command", f"{launch.launcher} is not needed: the operator starts the processes as it does")
    if launch.launcher == "python -m torch.distributed.launch" and "use-env" not in launch.expected:
        notes.dropped(f"{where}.command", "torch.distributed.launch passes --local-rank to the script; here LOCAL_RANK says it")
    for option in launch.expected:
        notes.dropped(f"{where}.command: --{option}", "not needed: processes find each other by the view")
    for option in launch.dropped:
        notes.dropped(f"{where}.command: {option}", "left out; see whether the script needs it")
    if launch.interpreter is not None:
        notes.check(
            f"{where}.command: {launch.interpreter}", "the script is run by the Python that runs the trainer in the image"
        )


def _tell_pod(made: Object, where: str, notes: Notes) -> None:
    spec = made.get("spec", {})
    container: Object = next(iter(spec.get("containers", [])), {})
    if container.get("image") is not None:
        notes.check(f"{where}.image", "the trainer has to be installed in it: build it on the operator's trainer image")
    if not spec.get("securityContext") and not container.get("securityContext"):
        notes.check(
            f"{where}.securityContext", "not said: pods run without root, and can write to their volumes, /tmp and /dev/shm alone"
        )
