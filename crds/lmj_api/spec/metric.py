"""What the best weights can be chosen by."""

from enum import StrEnum

from lmj_api.spec.model import Task

_LABELLED = (Task.SEQUENCE_CLASSIFICATION, Task.MULTI_LABEL_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.QUESTION_ANSWERING)


class Metric(StrEnum):
    """A number of an evaluation."""

    LOSS = "Loss"
    ACCURACY = "Accuracy"
    F1 = "F1"
    PERPLEXITY = "Perplexity"
    MEAN_ABSOLUTE_ERROR = "MeanAbsoluteError"
    CORRELATION = "Correlation"

    @property
    def larger_is_better(self) -> bool:
        """Whether a larger number is a better one."""
        return self in (Metric.ACCURACY, Metric.F1, Metric.CORRELATION)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks whose evaluations have it."""
        return _TASKS[self]


_TASKS: dict[Metric, tuple[Task, ...]] = {
    Metric.LOSS: tuple(Task),
    Metric.ACCURACY: (*_LABELLED, Task.CAUSAL_LM, Task.MASKED_LM),
    Metric.F1: _LABELLED,
    Metric.PERPLEXITY: (Task.CAUSAL_LM, Task.MASKED_LM),
    Metric.MEAN_ABSOLUTE_ERROR: (Task.REGRESSION,),
    Metric.CORRELATION: (Task.REGRESSION,),
}
