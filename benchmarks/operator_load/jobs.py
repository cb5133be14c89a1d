"""The jobs of the benchmarks."""

from typing import Any

from operator_load.plane import CLAIM, NAMESPACE


def job_name(number: int) -> str:
    """Of job ``number``, from 0."""
    return f"load-{number:04d}"


def document(number: int, ranks: int) -> dict[str, Any]:
    """Job ``number``, of ``ranks`` pipeline stages."""
    return {
        "apiVersion": "lmj.dev/v1alpha1",
        "kind": "LiveMigrationJob",
        "metadata": {"name": job_name(number), "namespace": NAMESPACE},
        "spec": spec_of(ranks),
    }


def spec_of(ranks: int) -> dict[str, Any]:
    """Of a job of ``ranks`` pipeline stages, on the claim that all share."""
    return {
        "pipeline": {"stages": ranks, "microBatches": ranks},
        "model": {"scratch": {"layers": ranks}},
        "dataset": {"source": "data/reviews.csv", "text": ["review"], "label": "sentiment"},
        "training": {"batchSize": ranks},
        "output": {"path": "out"},
        "storage": {"output": {"claimName": CLAIM}},
    }
