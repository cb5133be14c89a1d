"""The spec of the jobs that the plan is tried with."""

from lmj_api.spec import JobSpec


def job_spec(ranks: int, **parts: object) -> JobSpec:
    """``parts``: of the document, beside or in place of the usual ones."""
    document = {
        "pipeline": {"stages": ranks, "microBatches": 2},
        "model": {"scratch": {"layers": 4}},
        "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
        "training": {"batchSize": 4},
        "output": {"path": "out"},
        **parts,
    }
    return JobSpec.model_validate(document)
