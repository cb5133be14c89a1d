"""``trainer.kubeflow.org/v1alpha1`` TrainJob."""

from typing import Any, Final

from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes.build.template import merge
from lmj_operator.backend.kubernetes.build.template_check import check_template
from lmj_operator.convert.fields import Object, mapping, named, number, objects, text, texts
from lmj_operator.convert.notes import ConvertError, Notes
from lmj_operator.convert.source import Source

API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
KIND: Final = "TrainJob"
_TRAINER: Final = "spec.trainer"
_STEP: Final = "node"
"""Name of the job and of the container that train, in the runtimes that come with the trainer."""
_KNOWN: Final = frozenset({"command", "args", "numNodes", "numProcPerNode", "resourcesPerNode", "env", "image"})
_PATCHES: Final = ("podTemplateOverrides", "podSpecOverrides", "runtimePatches")
_SAME: Final = ("suspend", "activeDeadlineSeconds")


def source(document: Object, notes: Notes) -> Source:
    """What the TrainJob ``document`` says. Raises ConvertError."""
    spec = mapping(document, "spec", "")
    for key in spec:
        if key not in ("runtimeRef", "trainer", *_SAME, *_PATCHES):
            notes.dropped(
                f"spec.{key}",
                "left out; what an initializer fetches has to be on a volume" if key == "initializer" else "left out",
            )
    runtime = text(mapping(spec, "runtimeRef", "spec"), "name", "spec.runtimeRef")
    if runtime is None:
        raise ConvertError("spec.runtimeRef.name: missing: a TrainJob names its runtime")
    notes.check(
        f"spec.runtimeRef {runtime}",
        "what this runtime sets is not in the file: see its image, volumes, numbers of nodes and processes, and put what you need into"
        " the result",
    )
    trainer = mapping(spec, "trainer", "spec")
    for key in trainer:
        if key not in _KNOWN:
            notes.dropped(f"{_TRAINER}.{key}", "left out")
    nodes = number(trainer, "numNodes", _TRAINER, 1)
    if nodes is None:
        notes.check(f"{_TRAINER}.numNodes", "not said: the runtime's number counts; 1 here, in dataParallel.replicas")
    return Source(
        metadata=mapping(document, "metadata", ""),
        pod=_pod(spec, trainer),
        where=_TRAINER,
        container=_STEP,
        replicas=nodes or 1,
        processes=_processes(trainer),
        entrypoint=f"the runtime {runtime}",
        fields={key: spec[key] for key in _SAME if key in spec},
    )


def _processes(trainer: Object) -> str | None:
    if isinstance(trainer.get("numProcPerNode"), str):
        return text(trainer, "numProcPerNode", _TRAINER)
    count = number(trainer, "numProcPerNode", _TRAINER, 1)
    return str(count) if count is not None else "auto"


def _pod(spec: Object, trainer: Object) -> Object:
    """The pod template that the job says, without what its runtime does."""
    container: Object = {"name": _STEP}
    for key in ("command", "args"):
        if texts(trainer, key, _TRAINER):
            container[key] = trainer[key]
    if (image := text(trainer, "image", _TRAINER)) is not None:
        container["image"] = image
    if resources := mapping(trainer, "resourcesPerNode", _TRAINER):
        container["resources"] = resources
    pod: Object = {}
    for patch, where in _patches(spec):
        _require_mergeable(patch, where)
        pod = merge(pod, patch)
    if env := named(trainer, "env", _TRAINER):
        container["env"] = env
    return merge(pod, {"spec": {"containers": [container]}})


def _require_mergeable(patch: Object, where: str) -> None:
    """Raise ConvertError for a pod template with a list that cannot be merged."""
    spec = {**mapping(patch, "spec", where)}
    containers = named(spec, "containers", f"{where}.spec")
    spec["initContainers"] = [*named(spec, "initContainers", f"{where}.spec"), *containers]
    try:
        check_template({"spec": {key: value for key, value in spec.items() if key not in ("containers", "restartPolicy")}})
    except SpecError as error:
        raise ConvertError(error.lines[0].replace("spec.template", where, 1)) from error


def _patches(spec: Object) -> list[tuple[Object, str]]:
    """What is laid over the runtime's pods that train, and where each is in the document."""
    found: list[tuple[Object, str]] = []
    for key in ("podTemplateOverrides", "podSpecOverrides"):
        for index, item in enumerate(objects(spec, key, "spec")):
            where = f"spec.{key}[{index}]"
            targets = [target["name"] for target in named(item, "targetJobs", where)]
            if targets and _STEP not in targets:
                continue
            body = {name: value for name, value in item.items() if name != "targetJobs"}
            found.append((body if key == "podTemplateOverrides" or "spec" in body else {"spec": body}, where))
    for index, item in enumerate(objects(spec, "runtimePatches", "spec")):
        where = f"spec.runtimePatches[{index}]"
        inside: Any = item
        for key in ("trainingRuntimeSpec", "template", "spec"):
            inside, where = mapping(inside, key, where), f"{where}.{key}"
        for job in named(inside, "replicatedJobs", where):
            if job["name"] == _STEP:
                place = f"{where}.replicatedJobs[{_STEP}]"
                body = mapping(mapping(job, "template", place), "spec", f"{place}.template")
                found.append((mapping(body, "template", f"{place}.template.spec"), f"{place}.template.spec.template"))
    return found
