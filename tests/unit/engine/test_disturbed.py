"""For each task and each family: a worker that is killed, and a rank that moves, change no bit, whatever stages and replicas there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_jobs import make_data, make_job, make_model, make_questions, make_words
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForQuestionAnswering

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.model.families.registry import FAMILIES

from .disturbed import Disturbed
from .small_job import losses, start, weights
from .test_own import of as of_own

pytestmark = pytest.mark.integration

AT = 4
"""The step that is evaluated. At its boundary a rank moves; a worker is killed at the one before, while others compute."""
ROWS, STEPS = 120, 7
TEXTS = {"label": None}


def make_numbers(path: Path, rows: int) -> Path:
    """Texts with a number."""
    text = make_data(path, rows).read_text()
    path.write_text(text.replace(",pos\n", ",1.5\n").replace(",neg\n", ",-0.5\n"))
    return path


@dataclass(frozen=True)
class Case:
    """A model with dropout, and what it learns."""

    family: str
    task: str = "SequenceClassification"
    kind: Any = AutoModel
    """Of the model's source: a bare one gets a random head."""
    dataset: dict[str, Any] = field(default_factory=dict)
    rows: Callable[[Path, int], Path] = make_data
    file: str = "rows.csv"
    lora: dict[str, Any] | None = None
    tied: bool = False
    """One table of tokens at both ends."""

    @property
    def stages(self) -> int:
        """At most."""
        return 2 if self.family in FAMILIES else 1

    def source(self, folder: Path) -> Path:
        """The model, with the rows beside it."""
        self.rows(folder / self.file, ROWS)
        more = {"tie_word_embeddings": True} if self.tied else {}
        return make_model(folder / "source", self.family, layers=2, kind=self.kind, **more)

    def job(self, source: Path, folder: Path, stages: int, replicas: int) -> LiveMigrationJob:
        """Seven steps in more than an epoch."""
        return make_job(
            folder / "out",
            source.parent / self.file,
            source,
            stages,
            self.lora,
            model={"task": self.task},
            dataset={**self.dataset, "splits": {"validationFraction": 0.2}},
            dataParallel={"shards": 4, "replicas": replicas},
            training={"maxSteps": STEPS, "evalSteps": AT, "gradientAccumulationSteps": 1},
            checkpoint={"everySteps": None},
        )


ASKED = {"text": ["question", "text"], "label": "answers"}
LORA = {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": ["q_proj", "down_proj"]}
CASES = {
    **{family: Case(family) for family in ("bert", "distilbert", "roberta", "electra", "albert", "deberta-v2")},
    "several-labels": Case("bert", "MultiLabelClassification"),
    "a-number": Case("bert", "Regression", rows=make_numbers),
    "words": Case("bert", "TokenClassification", rows=make_words, file="rows.jsonl"),
    "answers": Case("bert", "QuestionAnswering", AutoModelForQuestionAnswering, ASKED, make_questions, "rows.jsonl"),
    "hidden-tokens": Case("bert", "MaskedLM", AutoModelForMaskedLM, TEXTS, tied=True),
    "gpt2": Case("gpt2", "CausalLM", AutoModelForCausalLM, TEXTS, tied=True),
    "llama-packed": Case("llama", "CausalLM", AutoModelForCausalLM, {**TEXTS, "packing": True}),
    "llama-adapters": Case("llama", "CausalLM", AutoModelForCausalLM, TEXTS, lora=LORA),
    "mistral": Case("mistral", "CausalLM", AutoModelForCausalLM, TEXTS),
    "qwen2": Case("qwen2", "CausalLM", AutoModelForCausalLM, TEXTS, tied=True),
}


Make = Callable[[str, int, int], LiveMigrationJob]
"""A job of so many stages and replicas, in a folder of this name."""


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LiveMigrationJob], Disturbed]]:
    with ExitStack() as stack:

        def group(job: LiveMigrationJob) -> Disturbed:
            made = Disturbed(job, monkeypatch)
            stack.callback(made.close)
            return made

        yield group


def disturbed(make: Make, group: Callable[[LiveMigrationJob], Disturbed], stages: int, victim: int) -> None:
    """A job of two replicas of ``stages`` whose rank ``victim`` is killed, and one of which the last but ``victim`` moves, learn what a job of
    one rank does that is left alone.
    """
    alone = group(make("alone", 1, 1))
    alone.run(start())
    assert len(set(losses(alone.job))) == len(losses(alone.job)) > AT
    assert AT in alone.evaluated
    killed = group(make("killed", stages, 2))
    killed.run(killed.kill(victim, AT - 1), number=2)
    moved = group(make("moved", stages, 2))
    moved.run(moved.move(len(moved.lines) - 1 - victim, AT - 2), number=2)
    for each in (killed, moved):
        assert losses(each.job) == losses(alone.job)
        assert each.evaluated == alone.evaluated
        assert weights(each.job).keys() == weights(alone.job).keys()
        assert all(torch.equal(tensor, weights(each.job)[name]) for name, tensor in weights(alone.job).items())


@pytest.mark.parametrize("name", CASES)
def test_a_kill_and_a_move_change_no_bit(tmp_path: Path, groups: Callable[[LiveMigrationJob], Disturbed], name: str) -> None:
    case = CASES[name]
    source, ranks = case.source(tmp_path), 2 * case.stages
    # The first rank, which records, in one half of the cases.
    victim = list(CASES).index(name) % 2 * (ranks - 1)
    disturbed(lambda name, *shape: case.job(source, tmp_path / name, *shape), groups, case.stages, victim)


@pytest.mark.parametrize("victim", [0, 3])
def test_they_change_no_bit_of_a_class_of_one_s_own(
    tmp_path: Path, groups: Callable[[LiveMigrationJob], Disturbed], victim: int
) -> None:
    disturbed(lambda name, *shape: of_own(tmp_path / name, *shape, output={"weights": "Last"}), groups, 2, victim)
