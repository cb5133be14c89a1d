"""How large a job may be, and that nothing takes long to be refused."""

import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmj_api.complaints import complaints
from lmj_api.load import SpecError, load_job
from lmj_api.nearest import nearest
from lmj_api.size import MOST_BYTES, MOST_VALUES
from lmj_api.spec import LiveMigrationJob

MOST = "the most that a job may have: put what is large into a ConfigMap or on a volume, and name that"


def document(**spec: Any) -> dict[str, Any]:
    needed = {
        "model": {"scratch": {}},
        "dataset": {"source": "r.csv", "text": ["review"], "label": "label"},
        "output": {"path": "runs/x"},
    }
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "q"}, "spec": needed | spec}


def problem(doc: dict[str, Any]) -> str:
    """The one line about it, which took a moment."""
    began = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_job(doc, base=Path("/nowhere"))
    assert time.process_time() - began < 1
    return str(caught.value)


def bomb(levels: int) -> Any:
    """What a file of a few hundred bytes is, whose parts name one another."""
    value: Any = ["x"] * 9
    for _ in range(levels):
        value = [value] * 9
    return value


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("doc", "line"),
    [
        (document(template={"spec": {"x": "a" * MOST_BYTES}}), f"spec.template: more than 256 KiB, {MOST}"),
        (document(template={"spec": {"a" * MOST_BYTES: 1}}), f"spec.template: more than 256 KiB, {MOST}"),
        (document(template={"spec": {"x": "é" * (MOST_BYTES // 2)}}), f"spec.template: more than 256 KiB, {MOST}"),
        (document(template={f"key{n}": 1 for n in range(100_000)}), f"spec.template: more than 10,000 values, {MOST}"),
        (document(template={"spec": {"x": [{}] * 400_000}}), f"spec.template: more than 10,000 values, {MOST}"),
        (document(template={"spec": bomb(9)}), f"spec.template: more than 10,000 values, {MOST}"),
        (document(template=nested(70)), "spec.template: nested deeper than 64 levels"),
        (document(template=nested(100_000)), "spec.template: nested deeper than 64 levels"),
        (document(**{f"key{n}": 1 for n in range(100_000)}), f"spec: more than 10,000 values, {MOST}"),
        (document(placement={"nodeSelector": {"a": "b" * MOST_BYTES}}), f"spec: more than 256 KiB, {MOST}"),
        (document() | {"status": bomb(9)}, f"the file, besides the spec: more than 40,000 values, {MOST}"),
        (document(training={"batchSize": 1 << 20_000}), "spec.training.batchSize: a whole number of more than 64 bits"),
    ],
    ids=range(12),
)
def test_what_is_too_large_is_refused_at_once(doc: dict[str, Any], line: str) -> None:
    assert problem(doc) == line


def test_what_is_large_and_not_too_large_is_read() -> None:
    template = {"spec": {"x": ["a" * 20] * (MOST_VALUES - 100)}}
    assert load_job(document(template=template), base=Path("/nowhere")).spec.template == template


def test_many_mistakes_take_no_longer_than_some() -> None:
    assert problem(document(**{f"key{n}": 1 for n in range(MOST_VALUES - 100)})).startswith(
        "spec.key0: unknown field; known here: "
    )
    with pytest.raises(ValidationError) as caught:
        LiveMigrationJob.model_validate(document(**{f"key{n}": 1 for n in range(100_000)}))
    began = time.process_time()
    assert len(complaints(caught.value)) == 50
    assert time.process_time() - began < 3


def test_a_name_that_somebody_made_up_is_shown_in_a_line() -> None:
    said = problem(document(**{"k" * 1000: 1, "a\nb": 1}))
    assert said.splitlines()[0].startswith(f"spec.'{'k' * 64}': unknown field")
    assert said.splitlines()[1].startswith("spec.'a\\nb': unknown field")


def test_the_nearest_of_many_is_looked_for_among_some() -> None:
    began = time.process_time()
    assert nearest("x" * 1_000_000, ["text"]) is None
    assert nearest("text", ["y" * 1_000_000, "texts"]) == "texts"
    assert nearest("tekst", (f"name-{n}" for n in range(10_000_000))) is None
    assert time.process_time() - began < 1
