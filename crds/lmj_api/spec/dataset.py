"""What the model is trained on."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from lmj_api.base import Message
from lmj_api.spec.streaming import Streaming

MLM_PROBABILITY = 0.15
Name = Annotated[str, Field(min_length=1)]


class Splits(Message):
    """Where train, validation and test rows come from.

    A part named by ``train``, ``validation`` or ``test`` is taken as it is: a split of a hub dataset or saved folder, or another
    file. A part without a name is cut off the training rows by its fraction, in the order of ``training.seed``.
    """

    train: Name = "train"
    """Split name (hub and saved datasets); a file given as ``source`` is the training split whatever this says."""
    validation: Name | None = None
    """Split name, or a file, of the validation rows; a path or a place in object storage, as in ``source``."""
    test: Name | None = None
    """Split name, or a file, of the test rows; as ``validation``."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the training rows to validate on, when ``validation`` is not set."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the training rows to test on, when ``test`` is not set."""

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("validationFraction + testFraction leave no training rows: make their sum less than 1")
        if self.validation is not None and self.validation_fraction:
            raise ValueError("set validation or validationFraction, not both")
        if self.test is not None and self.test_fraction:
            raise ValueError("set test or testFraction, not both")
        return self


class MaxSamples(Message):
    """Caps on the rows of each split, taken in the order of ``training.seed``."""

    train: Annotated[int, Field(ge=1)] | None = None
    """Most training rows (before fractions are cut off)."""
    validation: Annotated[int, Field(ge=1)] | None = None
    """Most validation rows."""
    test: Annotated[int, Field(ge=1)] | None = None
    """Most test rows."""


class Dataset(Message):
    """The dataset: texts or pairs of texts, with labels where the task has some."""

    source: Name
    """A ``.csv``, ``.tsv``, ``.jsonl``, ``.json`` or ``.parquet`` file, a folder that ``save_to_disk`` wrote, or a hub id. A relative path is relative to
    the job's file. A file or folder in object storage, ``s3://BUCKET/FILE``, is fetched once, into the output folder."""
    config: Name | None = None
    """Configuration of a hub dataset (``sst2`` of ``glue``)."""
    revision: Name | None = None
    """Branch, tag or commit of a hub id."""
    text: Annotated[list[Name], Field(min_length=1, max_length=2)] | None = None
    """Column of the text, or the two columns of a pair; to label words, a column of lists of words (or of words with spaces between). For
    ``CausalLM`` a pair is a prompt and what the model is to answer, of which the answer alone is learned, and a column may have
    conversations; for ``QuestionAnswering`` a question and the text that answers it. Unset for ``model.python``, which gets all columns."""
    label: Name | None = None
    """Column of the label: names as in ``model.labels``, or their numbers; of words a list of as many, or these with spaces between; for
    ``MultiLabelClassification`` a list, or names with commas between; for ``Regression`` numbers; for ``QuestionAnswering`` answers
    with where they begin, as SQuAD has them, or texts. Unset for ``CausalLM`` and ``MaskedLM``, which have none, and ``model.python``."""
    splits: Splits = Splits()
    """Train, validation and test rows."""
    max_samples: MaxSamples = MaxSamples()
    """Caps on the number of rows."""
    max_length: Annotated[int, Field(ge=2, le=65536)] = 128
    """Tokens of a sample; longer ones are cut, or for ``QuestionAnswering`` and with ``packing`` become several. At most what the model can
    read."""
    packing: bool = False
    """For ``CausalLM``: put texts end to end and train on all of that, in samples of ``maxLength`` tokens. No text is cut off, a long one goes on
    in the next sample; and nothing is padded but the last one."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For ``MaskedLM``: the part of a text's tokens that are hidden and learned, one at least. Unset: 0.15, as BERT's."""
    streaming: Streaming | None = None
    """Read the training rows while the job trains, and fetch and keep none: for what does not fit on a disk. ``source`` is a Parquet file or a folder of them then,
    on a volume or in object storage. Null: they are read and tokenized before training begins."""

    @property
    def masked_part(self) -> float:
        """``mlm_probability``, or what it is where it is unset."""
        return MLM_PROBABILITY if self.mlm_probability is None else self.mlm_probability

    @property
    def columns(self) -> list[str]:
        """Columns of text; none where all are taken."""
        return self.text or []


NO_DATASET: Final = Dataset.model_construct(source="")
"""Of a job that has none, because its script has: the only one without a source."""
