"""A pod template of another operator as ``spec.template``: the parts that go over the operator's own pod."""

from collections.abc import Iterable
from typing import Final

from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.convert.fields import Object, mapping, named, objects
from lmj_operator.convert.notes import ConvertError, Notes

_RESERVED: Final = frozenset({"job", "run", "tmp", "output"})
"""Names of volumes that the operator's pods have."""
_NOT_OURS: Final = ("command", "args", "workingDir", "name")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
SET_BY_LAUNCHER: Final = frozenset(
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NPROC_PER_NODE",
        "NNODES",
    ]
)
"""Variables that each process gets, as ``torchrun`` sets them, beside all that begin with ``PET_``."""


def trained_container(spec: Object, name: str, where: str) -> Object:
    """The container called ``name``, or the only one. Raises ConvertError."""
    containers = named(spec, "containers", where)
    for container in containers:
        if container.get("name") == name:
            return container
    if len(containers) == 1:
        return containers[0]
    found = ", ".join(repr(container.get("name")) for container in containers) or "none"
    raise ConvertError(f"{where}.containers: which of them trains (here: {found})? Call it {name}")


def template(pod: Object, trained: Object, notes: Notes, where: str, single: bool) -> Object:
    """``spec.template`` for a pod template ``pod`` whose container ``trained`` runs the script. ``single``: the job has one pod."""
    spec = dict(mapping(pod, "spec", where))
    where_spec = f"{where}.spec"
    spec.pop("restartPolicy", None)
    for key in ("hostname", "subdomain"):
        if spec.pop(key, None) is not None:
            notes.dropped(f"{where_spec}.{key}", "the operator names its pods itself")
    own = f"{where_spec}.containers[{trained.get('name', '')}]"
    containers = [_container(trained, notes, own)]
    for other in named(spec, "containers", where_spec):
        if other is not trained:
            notes.check(
                f"{where_spec}.containers[{other.get('name', '')}]", "a second container is kept, and ends when its pod does"
            )
            containers.append(other)
    spec["containers"] = containers
    _rename_volumes(spec, notes, where_spec, single)
    if spec.get("serviceAccountName") is not None and "automountServiceAccountToken" not in spec:
        notes.check(
            f"{where_spec}.serviceAccountName",
            "its token is not mounted; set automountServiceAccountToken: true there if the script asks the API server",
        )
    metadata = {
        key: value for key, value in mapping(pod, "metadata", where).items() if key in ("labels", "annotations") and value
    }
    made: Object = {"metadata": metadata} if metadata else {}
    if containers == [{"name": CONTAINER}] and len(spec) == 1:
        return made
    return {**made, "spec": spec}


def _container(trained: Object, notes: Notes, where: str) -> Object:
    container = {"name": CONTAINER, **{key: value for key, value in trained.items() if key not in _NOT_OURS and value != []}}
    for key in (*_PROBES, "lifecycle"):
        if container.pop(key, None) is not None:
            notes.dropped(f"{where}.{key}", "the operator watches the container itself")
    env = []
    for variable in named(container, "env", where):
        name = variable["name"]
        if name in SET_BY_LAUNCHER or name.startswith("PET_"):
            notes.dropped(f"{where}.env[{name}]", "each process gets it from its place in the view")
        else:
            env.append(variable)
    ports = [port for port in objects(container, "ports", where) if port.get("name") != "pytorchjob-port"]
    for key, items in (("env", env), ("ports", ports)):
        if items:
            container[key] = items
        else:
            container.pop(key, None)
    return container


def add_variables(pod_template: Object, variables: dict[str, str]) -> None:
    """Have the script's container have ``variables`` too, over those that it has."""
    if not variables:
        return
    spec = pod_template.setdefault("spec", {})
    container = spec.setdefault("containers", [{"name": CONTAINER}])[0]
    env = [variable for variable in container.get("env", []) if variable.get("name") not in variables]
    container["env"] = [*env, *({"name": name, "value": value} for name, value in variables.items())]


def without_variable(container: Object, name: str) -> Object:
    """``container`` without the variable ``name``."""
    return {**container, "env": [item for item in container.get("env", []) if item.get("name") != name]}


def literal_variables(container: Object, where: str) -> dict[str, str]:
    """Variables of ``container`` whose values are in the file. Raises ConvertError."""
    return {item["name"]: item["value"] for item in named(container, "env", where) if isinstance(item.get("value"), str)}


def gpus(container: Object, where: str) -> int:
    """GPUs that ``container`` may use. Raises ConvertError."""
    resources = mapping(container, "resources", where)
    for key in ("limits", "requests"):
        for name, count in mapping(resources, key, f"{where}.resources").items():
            if name.rpartition("/")[2] in ("gpu", "i915", "xe") and str(count).isdecimal() and int(count) > 0:
                return int(count)
    return 0


def _rename_volumes(spec: Object, notes: Notes, where: str, single: bool) -> None:
    taken: set[str] = {volume["name"] for volume in named(spec, "volumes", where)}
    renamed: dict[str, str] = {}
    for name in sorted(_RESERVED & taken):
        if name == "output" and not single:
            continue
        new = f"user-{name}"
        while new in taken:
            new = f"user-{new}"
        renamed[name] = new
        notes.changed(f"{where}.volumes[{name}]", f"the operator's pods have a volume of this name: it is called {new}")
    if not renamed:
        return
    spec["volumes"] = list(_called(named(spec, "volumes", where), renamed))
    for key in ("containers", "initContainers"):
        if key in spec:
            spec[key] = [_with_mounts(container, renamed, where) for container in named(spec, key, where)]


def _with_mounts(container: Object, renamed: dict[str, str], where: str) -> Object:
    if "volumeMounts" not in container:
        return container
    return {**container, "volumeMounts": list(_called(named(container, "volumeMounts", where), renamed))}


def _called(items: Iterable[Object], renamed: dict[str, str]) -> Iterable[Object]:
    for item in items:
        yield {**item, "name": renamed.get(item["name"], item["name"])}
