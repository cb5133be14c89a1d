"""The rules of :mod:`lmj_api.spec.streaming` as CEL, for an API server: of jobs that have a model and a dataset."""

from typing import Final

from lmj_api.spec.model import Task
from lmj_api.spec.streaming import CONVERT, FROM_ROWS, OTHER_ENDINGS

_TASK: Final = f"(has(self.model.task) ? self.model.task : '{Task.SEQUENCE_CLASSIFICATION}')"
_WINDOWED: Final = [str(task) for task in Task if task.windowed]
_NAMED: Final = [str(task) for task in Task if task.named]
_MAY: Final = {
    "model.scratch": "!has(self.model.scratch)",
    "model.python": "!has(self.model.python)",
    "model.task": f"!({_TASK} in {_WINDOWED})",
    "model.labels": f"!({_TASK} in {_NAMED}) || has(self.model.labels)",
    "dataset.packing": "!(has(self.dataset.packing) && self.dataset.packing)",
    "dataset.config": "!has(self.dataset.config)",
    "dataset.revision": "!has(self.dataset.revision)",
    "dataset.splits.train": "self.dataset.splits.train == 'train'",
    "dataset.splits.validationFraction": "self.dataset.splits.validationFraction == 0.0",
    "dataset.splits.testFraction": "self.dataset.splits.testFraction == 0.0",
    "dataset.maxSamples.train": "!has(self.dataset.maxSamples.train)",
    "training.groupByLength": "!(has(self.training.groupByLength) && self.training.groupByLength)",
}


def rules_of_streams() -> list[tuple[str, str]]:
    """What goes with ``dataset.streaming``."""
    endings = "|".join(ending.removeprefix(".") for ending in OTHER_ENDINGS)
    return [
        (f"!has(self.dataset.streaming) || !matches(self.dataset.source, '(?i)[.]({endings})$')", f"dataset.source: {CONVERT}"),
        *((f"!has(self.dataset.streaming) || {_MAY[name]}", f"{name} {why}") for name, why in FROM_ROWS.items()),
    ]
