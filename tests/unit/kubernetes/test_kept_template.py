"""A job's template kept as text: the same pods, and little memory."""

import json
import tracemalloc
from typing import Any

import pytest
from cluster_jobs import SETTINGS, job, job_body

from lmj_operator.backend.kubernetes.build.kept_template import LARGE, KeptTemplate, is_large, template_of, with_kept_template
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.cluster_job import cluster_job

LIMITED = {"name": "trainer", "resources": {"limits": {"memory": "1Gi"}}}
TEMPLATES: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": {"team": "a"}}},
    "places": {"spec": {"nodeSelector": {"zone": "b"}, "hostNetwork": True}},
    "limits": {"spec": {"containers": [LIMITED]}},
    "empty": {},
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_pods_are_those_of_the_template_itself(template: dict[str, Any]) -> None:
    whole = job(template=template)
    kept = with_kept_template(whole, json.dumps(job_body(template=template)["spec"]) + " " * LARGE)
    assert is_large(kept) == bool(template)
    assert build_pod(kept, SETTINGS, 1, 2) == build_pod(whole, SETTINGS, 1, 2)
    assert node_selector(kept, 1) == node_selector(whole, 1)
    assert template_of(kept) == template_of(whole) == template
    assert dict(kept.spec.template or {}) == template
    assert len(kept.spec.template or {}) == len(template)


def test_a_job_without_a_template_has_none_kept() -> None:
    whole = job()
    assert with_kept_template(whole, " " * (LARGE + 1)) is whole
    assert template_of(whole) == {}


def test_a_large_template_takes_no_memory_beside_the_text_that_is_there() -> None:
    variables = [{"name": f"V{number}", "value": f"{number:0100d}"} for number in range(1500)]
    body = job_body(template={"spec": {"containers": [{"name": "trainer", "env": variables}]}})
    text = json.dumps(body["spec"])
    cluster_job(body, SETTINGS)  # what is made once
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = with_kept_template(cluster_job({**body, "spec": json.loads(text)}, SETTINGS), text)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert isinstance(made.spec.template, KeptTemplate)
    assert grown < len(text) / 4
