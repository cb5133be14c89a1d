"""Whatever is in a template: it makes pods, or the job says in a line what is wrong. The API server takes any of it."""

import copy
import json
from typing import Any

import pytest
from cluster_jobs import SETTINGS, job, script
from hostile.good import REQUIRED, TEMPLATE
from hostile.mutations import Path, at, paths, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmj_api.problems import SpecError
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.pod_state import NodeState, misplaced

PATHS = [path for path in paths(TEMPLATE) if path]
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
    """No error but one for people, whatever the job runs."""
    template = json.loads(json.dumps(template))
    for make in (job, script):
        lines: tuple[str, ...] = ()
        try:
            pods_of(make(template=template))
        except SpecError as error:
            lines = error.lines
        assert all("spec." in line and line.isprintable() for line in lines), lines


def pods_of(made: LiveMigrationJob) -> None:
    for rank in (0, None):
        pod = build_pod(made, SETTINGS, rank, 1, ("node-1",), "node-2")
        json.dumps(pod)
        node = NodeState(ready=True, since=0.0, labels={"pool": "b"})
        misplaced({"spec": {"nodeSelector": {}}}, node, node_selector(made, rank))


def test_the_template_that_is_changed_is_a_good_one() -> None:
    assert build_pod(job(template=TEMPLATE), SETTINGS, 0, 1)["spec"]["containers"][1]["name"] == "sidecar"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_good_template_with_one_wrong_part(rounds: int) -> None:
    @settings(max_examples=rounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(PATHS), VALUES)
    def check(path: Path, value: Any) -> None:
        template = copy.deepcopy(TEMPLATE)
        put(template, path, value)
        pods_or_a_line(template)

    check()


@pytest.mark.parametrize("rounds", [60, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_good_template_with_several_changes(rounds: int) -> None:
    """Parts of it elsewhere, taken away, or replaced by anything."""
    parts = st.one_of(VALUES, st.sampled_from(PATHS).map(lambda path: at(TEMPLATE, path)))

    @settings(max_examples=rounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(st.sampled_from(PATHS), parts), min_size=1, max_size=4))
    def check(changes: list[tuple[Path, Any]]) -> None:
        template = copy.deepcopy(TEMPLATE)
        for path, part in changes:
            put(template, path, copy.deepcopy(part))
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
        (
            {"spec": {"containers": [{"name": "trainer", "resources": "2 CPUs"}]}},
            "spec.template.spec.containers[trainer].resources: a mapping is needed, not text",
        ),
        (
            {"spec": {"containers": [{"name": "trainer", "resources": {"limits": 2}}]}},
            "spec.template.spec.containers[trainer].resources.limits: a mapping is needed, not a number",
        ),
        ({"spec": {"nodeSelector": ["a"]}}, "spec.template.spec.nodeSelector: a mapping is needed, not a list"),
        ({"spec": {"containers": None}}, "spec.template.spec.containers: the trainer's container, trainer, cannot be taken away"),
        (
            {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": {}}}}}},
            f"spec.template.spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms: a list is needed, not a mapping",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(template: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(template=template)
    assert str(caught.value) == said
