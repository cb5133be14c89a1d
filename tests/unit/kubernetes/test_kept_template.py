"""A job's template kept as text: the same pods, and little memory."""

import gc
import json
import tracemalloc
from typing import Any

import pytest
from cluster_jobs import SETTINGS, cluster_job, job, job_body, script

from lmj_api.cut import Cut
from lmj_operator.backend.kubernetes.build.kept_template import (
    KeptTemplate,
    is_large,
    share_text,
    template_of,
    with_kept_template,
)
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.packed import LONG, packed

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
    kept = with_kept_template(whole, packed(json.dumps(job_body(template=template)["spec"]) + " " * LONG))
    assert is_large(kept) == bool(template)
    assert build_pod(kept, SETTINGS, 1, 2) == build_pod(whole, SETTINGS, 1, 2)
    assert node_selector(kept, 1) == node_selector(whole, 1)
    assert template_of(kept) == template_of(whole) == template
    assert dict(kept.spec.template or {}) == template
    assert len(kept.spec.template or {}) == len(template)


def test_a_job_without_a_template_has_none_kept() -> None:
    whole = job()
    assert with_kept_template(whole, packed(" " * (LONG + 1))) is whole
    assert template_of(whole) == {}


@pytest.fixture
def parsings(monkeypatch: pytest.MonkeyPatch) -> list[KeptTemplate]:
    """The templates that were parsed, once each time."""
    found, parsed = list[KeptTemplate](), KeptTemplate.parsed

    def counted(self: KeptTemplate) -> dict[str, Any]:
        found.append(self)
        return parsed(self)

    monkeypatch.setattr(KeptTemplate, "parsed", counted)
    return found


def test_a_pod_is_made_by_one_parsing(parsings: list[KeptTemplate]) -> None:
    template = {"spec": {"hostNetwork": True, "containers": [{"name": "trainer"}]}}
    kept = with_kept_template(script(template=template), packed(json.dumps({"template": template}) + " " * LONG))
    build_pod(kept, SETTINGS, 1, 2)
    assert len(parsings) == 1


def test_where_pods_may_run_is_asked_in_every_pass_and_parsed_once(parsings: list[KeptTemplate]) -> None:
    template = {"spec": {"nodeSelector": {"zone": "b"}}}
    kept = with_kept_template(job(template=template), packed(json.dumps({"template": template}) + " " * LONG))
    selectors = [node_selector(kept.cut_into(cut), rank) for cut in (None, Cut(stages=1)) for rank in (0, None)]
    assert selectors == [{"zone": "b"}] * 4
    assert len(parsings) == 1


def test_one_of_two_equal_texts_is_kept() -> None:
    template = {"metadata": {"labels": {"team": "a"}}}
    text = json.dumps(job_body(template=template)["spec"])
    kept = with_kept_template(job(template=template), packed(text + " " * LONG))
    again, other = packed(text + " " * LONG), packed(text + " " * (LONG + 1))
    share_text(kept, other)
    share_text(job(), again)
    assert template_of(kept) == template
    assert not any(held is other for held in gc.get_referents(kept.spec.template))
    share_text(kept, again)
    assert any(held is again for held in gc.get_referents(kept.spec.template))


def test_a_large_template_takes_no_memory_beside_the_text_that_is_there() -> None:
    variables = [{"name": f"V{number}", "value": f"{number:0100d}"} for number in range(1500)]
    body = job_body(template={"spec": {"containers": [{"name": "trainer", "env": variables}]}})
    text = json.dumps(body["spec"])
    cluster_job(body, SETTINGS)  # what is made once
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = packed(text)
        made = with_kept_template(cluster_job({**body, "spec": json.loads(text)}, SETTINGS), kept)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert isinstance(made.spec.template, KeptTemplate)
    assert grown < len(text) / 4
