"""Whatever is in a template: it makes pods, or the job says in a line what is wrong. The API server takes any of it."""

import copy
import json
from typing import Any

import pytest
from cluster_jobs import SETTINGS, job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.pod_state import NodeState, misplaced

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GOOD: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
        "affinity": {
            "nodeAffinity": {
                _REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [], "matchFields": [{"key": "metadata.name"}]}]}
            }
        },
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "nfs", "nfs": {"server": "s", "path": "/"}}],
        "initContainers": [{"name": "first", "image": "busybox", "env": [{"name": "A", "value": "b"}]}],
        "containers": [
            {
                "name": "trainer",
                "image": "registry.example/trainer:2",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"secretRef": {"name": "s"}}],
                "ports": [{"containerPort": 9000, "name": "x"}],
                "volumeMounts": [{"name": "nfs", "mountPath": "/mnt"}],
                "resources": {"limits": {"cpu": 2}},
            },
            {"name": "sidecar", "image": "busybox"},
        ],
    },
}


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in items for found in _paths(part, (*path, key)))]


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


PATHS = [path for path in _paths(GOOD) if path]
WORDS = sorted({part for path in PATHS for part in path if isinstance(part, str)} | {"command", "readOnly", "matchLabels"})
NAMES = st.one_of(st.sampled_from(WORDS), st.text(max_size=4))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["trainer", "/output", "Never"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)
ANYTHING = st.fixed_dictionaries(
    {}, optional={"metadata": st.dictionaries(NAMES, VALUES, max_size=3), "spec": st.dictionaries(NAMES, VALUES, max_size=4)}
)
ROUNDS = [60, pytest.param(3000, marks=pytest.mark.slow)]


def pods_or_a_line(template: Any) -> None:
    """No error but one for people."""
    template, lines = json.loads(json.dumps(template)), ()
    try:
        made = job(template=template)
        for rank in (0, None):
            pod = build_pod(made, SETTINGS, rank, 1, ("node-1",), "node-2")
            json.dumps(pod)
            node = NodeState(ready=True, since=0.0, labels={"pool": "b"})
            misplaced({"spec": {"nodeSelector": {}}}, node, node_selector(made, rank))
    except SpecError as error:
        lines = error.lines
    assert all("spec." in line and line.isprintable() for line in lines), lines


def test_the_template_that_is_changed_is_a_good_one() -> None:
    assert build_pod(job(template=GOOD), SETTINGS, 0, 1)["spec"]["containers"][1]["name"] == "sidecar"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_good_template_with_one_wrong_part(rounds: int) -> None:
    @settings(max_examples=rounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(PATHS), VALUES)
    def check(path: tuple[str | int, ...], value: Any) -> None:
        template: Any = copy.deepcopy(GOOD)
        place = template
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        pods_or_a_line(template)

    check()


def _put(value: Any, path: tuple[str | int, ...], part: Any) -> None:
    """Put ``part`` at ``path``, as far as that is still there."""
    for step in path[:-1]:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return
    last: Any = path[-1]
    if isinstance(value, dict) or (isinstance(value, list) and isinstance(last, int) and last < len(value)):
        value[last] = part


@pytest.mark.parametrize("rounds", [60, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_good_template_with_several_changes(rounds: int) -> None:
    """Parts of it elsewhere, taken away, or replaced by anything."""
    parts = st.one_of(VALUES, st.sampled_from(PATHS).map(lambda path: _at(GOOD, path)))

    @settings(max_examples=rounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(st.sampled_from(PATHS), parts), min_size=1, max_size=4))
    def check(changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
        template: Any = copy.deepcopy(GOOD)
        for path, part in changes:
            _put(template, path, copy.deepcopy(part))
        pods_or_a_line(template)

    check()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_template_of_anything(rounds: int) -> None:
    @settings(max_examples=rounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(ANYTHING)
    def check(template: dict[str, Any]) -> None:
        pods_or_a_line(template)

    check()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"mountPath": "/output"}]}]}},
            "spec.template.spec.containers[0].volumeMounts[0]: name is missing",
        ),
        (
            {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"mountPath": "/output", "name": []}]}]}},
            "spec.template.spec.containers[0].volumeMounts[0].name: text is needed, not a list",
        ),
        ({"metadata": {"labels": [1]}}, "spec.template.metadata.labels: a mapping is needed, not a list"),
        (
            {"metadata": {"labels": {"a": 1}}},
            "spec.template.metadata.labels.a: text is needed, not a number; put it in quotes",
        ),
        (
            {"spec": {"containers": [{"name": "trainer", "env": [{"name": {}}]}]}},
            "spec.template.spec.containers[0].env[0].name: text is needed, not a mapping",
        ),
        (
            {"spec": {"initContainers": [{"name": "a", "env": [1]}]}},
            "spec.template.spec.initContainers[0].env[0]: a mapping is needed, not a number",
        ),
        ({"spec": {"nodeSelector": ["a"]}}, "spec.template.spec.nodeSelector: a mapping is needed, not a list"),
        ({"spec": {"containers": None}}, "spec.template.spec.containers: the trainer's container, trainer, cannot be taken away"),
        (
            {"spec": {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": {}}}}}},
            f"spec.template.spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms: a list is needed, not a mapping",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(template: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(template=template)
    assert str(caught.value) == said
