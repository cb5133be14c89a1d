"""Pods of the project's images get this checkout instead: the API server itself puts its mounts into them.

So the chart is installed, and a job's file applied, as they are, on a machine that has no images of gigabytes to run.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cluster.api import Api, ApiError
from cluster.environment import CHECKOUT, Environment
from cluster.images import BASE
from cluster.process import wait_until

NAME = "lmj-test-environment"
IMAGES = ("lmj-operator", "lmj-trainer")
"""As the chart's values name them."""
_GROUP = "/apis/admissionregistration.k8s.io/v1beta1"
_POLICY = f"{_GROUP}/mutatingadmissionpolicies/{NAME}"
_BINDING = f"{_GROUP}/mutatingadmissionpolicybindings/{NAME}"
_EXAMPLES = "/opt/lmj/examples"
_FORCE_SECONDS = 30


@contextmanager
def pods_with_environment(api: Api, environment: Environment, images: Sequence[str] = IMAGES) -> Iterator[None]:
    """While the block lasts, new pods of ``images`` (names without a tag) run ``environment`` over the base image."""
    api.apply(_POLICY, policy(environment, images))
    binding = {"policyName": NAME}
    api.apply(_BINDING, {**_head("MutatingAdmissionPolicyBinding"), "spec": binding})
    try:
        wait_until("the admission policy in force", lambda: _in_force(api, images[0]), _FORCE_SECONDS)
        yield
    finally:
        api.delete(_BINDING)
        api.delete(_POLICY)


def policy(environment: Environment, images: Sequence[str] = IMAGES) -> dict[str, Any]:
    """The MutatingAdmissionPolicy. The trainer image has the examples; here they are a folder of the checkout."""
    volumes = [*environment.volumes, {"name": "examples", "hostPath": {"path": str(CHECKOUT / "examples"), "type": "Directory"}}]
    mounts = [*environment.volume_mounts, {"name": "examples", "mountPath": _EXAMPLES, "readOnly": True}]
    container = {"image": BASE, "env": environment.env, "volumeMounts": mounts}
    of_all = f"object.spec.containers.map(c, {cel({**container, 'name': _Expression('c.name')}, 'Object.spec.containers')})"
    of_ours = f"object.spec.containers.all(c, c.image.matches('^({'|'.join(images)}):'))"
    changed = f"Object{{spec: Object.spec{{volumes: {cel(volumes, 'Object.spec.volumes')}, containers: {of_all}}}}}"
    return {
        **_head("MutatingAdmissionPolicy"),
        "spec": {
            "matchConstraints": {
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
            },
            "matchConditions": [{"name": "ours", "expression": of_ours}],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": changed}}],
        },
    }


class _Expression(str):
    """A text that is CEL already."""

    __slots__ = ()


def cel(value: Any, kind: str) -> str:
    """``value`` (JSON) as a literal of CEL, objects as ``kind`` and its fields' kinds."""
    if isinstance(value, _Expression):
        return str(value)
    if isinstance(value, dict):
        return f"{kind}{{" + ", ".join(f"{name}: {cel(part, f'{kind}.{name}')}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(cel(part, kind) for part in value)}]"
    return json.dumps(value)


def _in_force(api: Api, image: str) -> bool:
    container = {"name": "probe", "image": f"{image}:probe"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "probe-"}, "spec": {"containers": [container]}}
    try:
        made = api.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
    except ApiError as error:
        if error.status >= 500:  # it is being compiled
            return False
        raise
    return bool(made["spec"]["containers"][0]["image"] == BASE)


def _head(kind: str) -> dict[str, Any]:
    return {"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": kind, "metadata": {"name": NAME}}
