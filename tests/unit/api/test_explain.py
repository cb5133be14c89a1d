"""What ``lmj explain`` says of a field is what the models say."""

import pytest

from lmj_api.explain import explain, paths
from lmj_api.problems import SpecError


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("training.batchSize", "spec.training.batchSize: whole number at least 1, default 32"),
        ("spec.training.learningRate", "spec.training.learningRate: number more than 0, default 5e-05"),
        ("training.warmupRatio", "spec.training.warmupRatio: number at least 0 and less than 1, default 0.0"),
        (
            "training.schedule",
            "spec.training.schedule: Linear | Cosine | Constant | CosineWithRestarts | Polynomial | InverseSqrt, default Linear",
        ),
        ("training.maxSteps", "spec.training.maxSteps: whole number at least 1, unset by default"),
        ("dataset.text", "spec.dataset.text: list of text (1 to 2 items), unset by default"),
        ("suspend", "spec.suspend: true or false, default false"),
        ("recovery.rules[].action", "spec.recovery.rules.action: Retry | Fail | NextNode, required"),
        ("placement.nodeSelector", "spec.placement.nodeSelector: mapping of texts"),
        ("metadata.name", "metadata.name: text"),
        ("", "spec: mapping, required"),
    ],
)
def test_type_bounds_and_default(path: str, first: str) -> None:
    assert explain(path)[0] == first


def test_meaning_rules_and_fields() -> None:
    assert explain("training.batchSize")[1:] == ["  Samples in a batch, over all micro-batches."]
    lines = explain("pipeline")
    assert "  Rule: layers needs one number for each stage." in lines
    assert "  On a cluster: pipeline.microBatches cannot be changed after the job is made: make a new job." in lines
    assert lines[-4].startswith("  stages         whole number from 1 to 64, default 2. Number of stages, each a rank")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("training.thread", "spec.training.thread: unknown field; did you mean threads?"),
        ("threads", "spec.threads: unknown field; did you mean spec.training.threads?"),
        ("training.threads.x", "spec.training.threads.x: unknown field; known here: "),
        ("spec.zzz", "spec.zzz: unknown field; known here: strategy, "),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(path: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        explain(path)
    assert str(caught.value).startswith(line)


def test_every_field_is_explained() -> None:
    known = list(paths())
    assert len(known) > 60
    for path in known:
        head, *rest = explain(path)
        assert head.startswith(f"spec.{path}: ")
        assert rest, path
        assert rest[0].strip()
