"""The spec of the jobs that the plan is tried with, and a view."""

from lmj_api.spec import JobSpec
from lmj_api.view import Member, Resume, View


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


def view_of_one(number: int, step: int = 0, reason: str = "r") -> View:
    """With rank 0 alone in it."""
    member = Member(rank=0, pod="j-r0-1", incarnation=1, address="a")
    return View(number=number, members=[member], resume=Resume(step=step), reason=reason)
