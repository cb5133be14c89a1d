"""Which model is trained, and for what."""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from lmj_api.base import Message

SCRIPT = "__main__"
"""In the place of the class in ``python``: the file is a script with an ``lmj.Trainer``."""


class Task(StrEnum):
    """What the model learns. ``SequenceClassification``: one label for each text or pair of texts. ``MultiLabelClassification``: any number of
    labels. ``Regression``: a number. ``TokenClassification``: a label for each word. ``CausalLM``: each token of a text from those before it.
    ``MaskedLM``: tokens that are hidden from it. ``QuestionAnswering``: the part of a text that answers a question.
    """

    SEQUENCE_CLASSIFICATION = "SequenceClassification"
    MULTI_LABEL_CLASSIFICATION = "MultiLabelClassification"
    REGRESSION = "Regression"
    TOKEN_CLASSIFICATION = "TokenClassification"  # noqa: S105 - of a text
    CAUSAL_LM = "CausalLM"
    MASKED_LM = "MaskedLM"
    QUESTION_ANSWERING = "QuestionAnswering"

    @property
    def labelled(self) -> bool:
        """Whether its rows have a label."""
        return self not in (Task.CAUSAL_LM, Task.MASKED_LM)

    @property
    def smoothed(self) -> bool:
        """Whether its loss is a cross entropy over labels or tokens, which ``training.labelSmoothing`` changes."""
        return self in (Task.SEQUENCE_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.CAUSAL_LM, Task.MASKED_LM)

    @property
    def named(self) -> bool:
        """Whether its labels have names."""
        return self not in (Task.CAUSAL_LM, Task.MASKED_LM, Task.REGRESSION, Task.QUESTION_ANSWERING)

    @property
    def windowed(self) -> bool:
        """Whether a long row becomes several samples."""
        return self is Task.QUESTION_ANSWERING


class Architecture(StrEnum):
    """The families of models that can be cut into stages."""

    BERT = "bert"
    DISTILBERT = "distilbert"
    ROBERTA = "roberta"
    ELECTRA = "electra"
    GPT2 = "gpt2"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"


class Scratch(Message):
    """A model with random weights (from ``training.seed``) and a WordPiece tokenizer trained on the training texts."""

    architecture: Architecture = Architecture.BERT
    """Family of the model."""
    layers: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of layers."""
    hidden_size: Annotated[int, Field(ge=1, le=16384)] = 128
    """Width of the hidden states; a multiple of ``heads``."""
    heads: Annotated[int, Field(ge=1, le=256)] = 4
    """Attention heads in a layer."""
    intermediate_size: Annotated[int, Field(ge=1, le=65536)] = 512
    """Width of the feed-forward part."""
    vocabulary: Annotated[int, Field(ge=16, le=1_000_000)] = 8000
    """Largest size of the vocabulary that the tokenizer learns."""
    max_positions: Annotated[int, Field(ge=2, le=65536)] = 512
    """Longest sequence that the model can read, in tokens."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout of hidden states and of attention."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"hiddenSize {self.hidden_size} is not a multiple of heads {self.heads}")
        return self


class Lora(Message):
    """Low-rank adapters (LoRA, by ``peft``): they and the head are trained, all other weights stay as they are."""

    r: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rank of the adapters."""
    alpha: Annotated[int, Field(ge=1, le=65536)] = 16
    """What an adapter adds is multiplied by ``alpha / r``."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0
    """Dropout of what goes into an adapter."""
    target_modules: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=64)] | None = None
    """Linear modules of the model's layers that get an adapter, by the end of their names (``query``, ``output.dense``); a module
    outside of the layers that has such a name, as BERT's pooler has ``dense``, gets one too. Unset: the attention's queries and values.
    """


class Model(Message):
    """The model: ``source`` (pretrained weights), ``scratch`` (random ones) or ``python`` (your own)."""

    source: Annotated[str, Field(min_length=1)] | None = None
    """A hub id (``bert-base-uncased``) or a folder that ``save_pretrained`` wrote, here or in object storage (``s3://BUCKET/FOLDER``, fetched once, into
    the output folder); its tokenizer comes with it."""
    revision: Annotated[str, Field(min_length=1)] | None = None
    """Branch, tag or commit of a hub id; the run keeps what that was when it began. With ``lora`` it must be a commit: a program that loads the
    adapter fetches the rest."""
    scratch: Scratch | None = None
    """Train from random weights; set instead of ``source``."""
    python: Annotated[str, Field(pattern=r"^.*[^/]\.py:[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """A class of your own in a Python file, ``my_task.py:MyTask``: it makes the model, and says what is learned of which rows; set instead of
    ``source`` and ``scratch``, without ``task``. A relative path is relative to the job's file; on a cluster the file is on the volume of the
    data, or in the image. Workers run it, and the check of a job. ``train.py:__main__`` is a script, which is run up to the ``train()`` of its
    ``lmj.Trainer``; ``dataset.source`` is the same file then."""
    python_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file in ``python``, hex: another content is refused. Unset: what the file has when the run begins."""
    task: Task = Task.SEQUENCE_CLASSIFICATION
    """What the model learns."""
    labels: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2, max_length=10_000)] | None = None
    """Names of the labels in the order of their ids. Unset: the sorted distinct values of the label column."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Overrides every dropout of a ``source`` model. Unset: as its config says."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self is NO_MODEL:
            return self
        if sum(origin is not None for origin in (self.source, self.scratch, self.python)) != 1:
            raise ValueError(
                "set exactly one of source (pretrained weights), scratch (random weights) and python (a class of your own)"
            )
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError("labels holds a name twice")
        return self

    @model_validator(mode="after")
    def _own(self) -> Self:
        if self.python is None:
            if self.python_sha256 is not None:
                raise ValueError("pythonSha256 is of the file in python, which is not set")
            return self
        if self.task is not Task.SEQUENCE_CLASSIFICATION:
            raise ValueError(f"task {self.task}: the class in python says what is learned: leave task out")
        for name, value in (("labels", self.labels), ("dropout", self.dropout), ("lora", self.lora), ("revision", self.revision)):
            if value is not None:
                raise ValueError(f"{name} is for models of transformers: with python leave it out")
        return self

    @property
    def python_file(self) -> tuple[str, str] | None:
        """The file in ``python`` and the name of the class."""
        if self.python is None:
            return None
        file, _, name = self.python.rpartition(":")
        return file, name

    @property
    def is_script(self) -> bool:
        """Whether ``python`` names a script with an ``lmj.Trainer``, which has the rows too."""
        return self.python_file is not None and self.python_file[1] == SCRIPT


NO_MODEL: Final = Model.model_construct()
"""Of a job that has none, because its script has: the only one without an origin."""
