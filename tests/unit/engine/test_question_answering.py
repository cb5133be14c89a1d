"""Questions and the texts that answer them: which tokens are learned, what is said, and that stages and replicas change no bit of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForQuestionAnswering

from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_trainer import evaluate, predict
from lmj_trainer.check import check
from lmj_trainer.data.files import read_rows
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.data.tokens import load_tokenizer
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.task.question_answering.answers import Answer, answers_of, exact, overlap
from lmj_trainer.task.question_answering.heads import HEADS
from lmj_trainer.task.question_answering.objective import LONGEST, AnswerCounts, AnswerObjective, best, said
from lmj_trainer.task.question_answering.task import ALWAYS, OR_NONE, QuestionAnswering
from lmj_trainer.task.question_answering.windows import NOWHERE, Known, window
from lmj_trainer.task.saved_model import SavedModel

from .conftest import small_config
from .test_decoders import saved_tokenizer
from .test_replicas import learn_the_same, of

PLACES = ["red hill", "old mill", "long lake"]
FILL = ["then", "they", "went", "on", "and", "on"]


def rows_of(folder: Path, *, lacks: bool, long: int = 0) -> Path:
    """Rows whose answer is a place, of which every fifth has none with ``lacks``; of ``long`` more words."""
    path, pick, lines = folder / "questions.jsonl", random.Random(1), []
    for number in range(80):
        place = pick.choice(PLACES)
        before = " ".join(pick.choices(FILL, k=1 + pick.randrange(long + 1)))
        text = f"{before} they met at {place} . {' '.join(pick.choices(FILL, k=long))}".strip()
        value: Any = {"text": [place], "answer_start": [text.index(place)]}
        lines.append(
            {
                "question": "where ?",
                "text": text,
                "answers": {"text": [], "answer_start": []} if lacks and number % 5 == 0 else value,
            }
        )
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def asking(job: LiveMigrationJob, folder: Path, **rows: Any) -> LiveMigrationJob:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= {"task": "QuestionAnswering"}
    path = rows_of(folder, **{"lacks": True, **rows})
    document["spec"]["dataset"] |= {"source": str(path), "text": ["question", "text"], "label": "answers"}
    return LiveMigrationJob.model_validate(document)


CONTEXT = "The mill, built in 1821, is old. In 1821 it was new."


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ({"text": ["1821", "mill"], "answer_start": [36, 4]}, [Answer("1821", 36), Answer("mill", 4)]),
        ({"text": "1821", "answer_start": 19}, [Answer("1821", 19)]),
        ({"text": ["1821"], "answer_start": [3]}, [Answer("1821", 19)]),
        ({"text": ["1821"]}, [Answer("1821", 19)]),
        ([{"text": "mill", "answer_start": 4}], [Answer("mill", 4)]),
        (["mill", "old"], [Answer("mill", 4), Answer("old", 28)]),
        ('{"text": ["mill"], "answer_start": [4]}', [Answer("mill", 4)]),
        ("mill", [Answer("mill", 4)]),
        ({"text": [], "answer_start": []}, []),
        ("", []),
        (None, []),
    ],
)
def test_answers_as_datasets_write_them(value: Any, answers: list[Answer]) -> None:
    assert answers_of(value, CONTEXT) == answers


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("barn", "'barn' is not in the text"),
        (7, "7 is no text"),
        ({"text": [""], "answer_start": [0]}, '"" is no text'),
        ({"text": ["mill"], "answer_start": [4, 5]}, r"1 texts and 2 places \(answer_start\)"),
        ("{mill", "Expecting property name"),
    ],
)
def test_answers_that_cannot_be_used(tmp_path: Path, value: Any, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"q": "What?", "c": CONTEXT, "a": "mill"}
    path.write_text("\n".join(map(json.dumps, [good, good | {"a": value}])))
    with pytest.raises(UserError, match=rf"row 2 of .*rows.jsonl has an answer that cannot be used: {problem}"):
        QuestionAnswering().check(read_rows(path, ["q", "c"], "a"), print)


@pytest.mark.parametrize(
    ("text", "answers", "match", "f1"),
    [
        ("the Old Mill.", ["old mill"], True, 1.0),
        ("old mill", ["the mill", "an old, red mill"], False, 0.8),
        ("", [], True, 1.0),
        ("mill", [], False, 0.0),
        ("", ["mill"], False, 0.0),
        ("mill mill", ["mill"], False, pytest.approx(2 / 3)),
    ],
)
def test_scores_are_squad_s(text: str, answers: list[str], match: bool, f1: float) -> None:
    assert exact(text, answers) is match
    assert overlap(text, answers) == f1


def test_the_label_of_a_window_is_where_the_answer_is_in_it() -> None:
    spans = np.array([(0, 0), (0, 3), (0, 0), (10, 13), (13, 14), (15, 19), (0, 0)])
    assert window(spans, 3, 6, Answer("x" * 4, 10)) == [3, 4, 3, 6]
    assert window(spans, 3, 6, Answer("x" * 2, 11)) == [3, 3, 3, 6], "a part of a token is the token"
    assert window(spans, 3, 6, Answer("x" * 4, 15)) == [5, 5, 3, 6]
    assert window(spans, 3, 6, Answer("x" * 5, 15)) == [NOWHERE, NOWHERE, 3, 6], "its end is not in the window"
    assert window(spans, 3, 6, Answer("x" * 4, 9)) == [NOWHERE, NOWHERE, 3, 6], "its beginning is not"
    assert window(spans, 3, 6, None) == [NOWHERE, NOWHERE, 3, 6]


def test_a_long_text_is_several_windows_of_which_some_have_the_answer(job: LiveMigrationJob, tmp_path: Path) -> None:
    split = prepare(asking(job, tmp_path, lacks=False, long=40).spec, tmp_path / "cache", print).splits["train"]
    assert len(split) > 64
    known = Known(split)
    assert not known.may_lack_answers
    with_answer = set()
    for number, (begin, end, first, stop) in enumerate(split.labels.tolist()):
        tokens, types = split.row(number)
        assert len(tokens) <= split.max_length
        assert types is not None
        assert types[first:stop].all()
        row = int(known.rows[number])
        if begin != NOWHERE:
            with_answer.add(row)
            assert known.text(number, begin, end) in known.answers(row)
    assert with_answer == set(range(64)), "windows have so much in common that one has all of each answer"


def test_a_question_that_leaves_no_room_for_a_text_is_told(tmp_path: Path) -> None:
    saved_tokenizer(tmp_path / "tokenizer", eos_token="</s>")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"q": "good " * 30, "c": "the good film", "a": "film"}))
    rows, task = read_rows(path, ["q", "c"], "a"), QuestionAnswering()
    with pytest.raises(
        UserError, match=r"row 1 of .* has a question of 30 tokens, and there is room for \d+: raise dataset.maxLength"
    ):
        task.encode(tokenizer, rows, task.ids(rows, task.labels(rows, None, "a")), 32, False, Ticker(print), "it")


@pytest.mark.parametrize("family", sorted(HEADS.by_family))
def test_loss_and_scores_are_those_of_transformers(family: str) -> None:
    config = small_config(family, num_labels=2)
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_config(config).eval()
    ids = torch.randint(5, 3000, (4, 8))
    labels = torch.tensor([[3, 4, 2, 7, 0], [0, 0, 2, 8, 1], [6, 6, 4, 7, 2], [2, 7, 2, 8, 3]])
    with torch.no_grad():
        theirs = model(input_ids=ids, start_positions=labels[:, 0], end_positions=labels[:, 1])
        hidden = getattr(model, model.base_model_prefix)(input_ids=ids).last_hidden_state
        ours = HEADS.by_family[family].compute(model, hidden, Inputs(ids, torch.ones_like(ids), None, labels))
    assert torch.equal(ours, torch.stack([theirs.start_logits, theirs.end_logits], -1))
    assert torch.equal(AnswerObjective({}).loss(ours, labels), theirs.loss)
    assert AnswerObjective({}).samples(labels) == 4


def test_the_best_answer_is_in_the_text_and_not_too_long() -> None:
    torch.manual_seed(0)
    output, labels = torch.randn(20, 50, 2), torch.tensor([[0, 0, 5, 45, n] for n in range(20)])
    for (number, first, last, score, none), scores in zip(best(output, labels), output.double(), strict=True):
        fits = [(b, e) for b in range(5, 45) for e in range(b, min(45, b + LONGEST))]
        assert score == max(float(scores[b, 0] + scores[e, 1]) for b, e in fits)
        assert (first, last) in fits
        assert none == float(scores[0].sum())
        assert number < 20


class Fixed:
    """As :class:`Known`, of two windows of row 0 and one of row 1."""

    rows = np.array([0, 0, 1])
    may_lack_answers = True

    def text(self, number: int, first: int, last: int) -> str:
        return f"{number}: {first} to {last}"


@pytest.mark.parametrize("turn", [1, -1])
def test_the_best_window_of_a_row_says_the_answer(turn: int) -> None:
    known: Any = Fixed()
    windows = [(0, 2, 3, 1.0, 0.5), (1, 5, 6, 2.0, 1.9), (2, 4, 4, 1.0, 1.5)][::turn]
    assert said(windows, known, may_lack=False) == {0: "1: 5 to 6", 1: "2: 4 to 4"}
    assert said(windows, known, may_lack=True) == {0: "1: 5 to 6", 1: ""}
    windows = [(0, 2, 3, 1.0, 5.0), (1, 5, 6, 2.0, 1.9)]
    assert said(windows, known, may_lack=True) == {0: "1: 5 to 6"}, "one window that has it is enough"


def test_counts_of_others_are_added() -> None:
    torch.manual_seed(0)
    output, labels = torch.randn(4, 9, 2), torch.tensor([[0, 0, 3, 8, n] for n in range(4)])
    whole, one, other = (AnswerCounts() for _ in range(3))
    whole.add(0, output, labels)
    one.add(0, output[:2], labels[:2])
    other.add(1, output[2:], labels[2:])
    one.merge(json.loads(json.dumps(other.payload())))
    assert one.windows == whole.windows
    assert sum(loss for _, loss in one.losses) == pytest.approx(whole.losses[0][1])
    with pytest.raises(ValueError, match="no window of test"):
        AnswerObjective({}).evaluation(AnswerCounts(), "test", 1)


@pytest.mark.integration
def test_stages_and_replicas_learn_what_one_process_does(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, four = (asking(of(job, tmp_path / name, n, n), tmp_path, long=30) for name, n in (("one", 1), ("four", 2)))
    alone = learn_the_same(one, four, monkeypatch)
    assert alone.of(EventKind.EVALUATED)[0][1]["evaluation"].samples == 16, "questions, not windows"
    output = Path(one.spec.output.path)
    saved = SavedModel.load(output)
    assert type(saved.task) is QuestionAnswering
    assert saved.labels == OR_NONE
    assert evaluate.main([str(output), one.spec.dataset.source, "-o", "json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["samples"] == 80
    assert 0 <= printed["accuracy"] <= printed["f1"] <= 1
    assert predict.main([str(output), "where ?\tthey met at old mill .", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["question"] == "where ?"
    assert found["answer"] in "they met at old mill ."
    assert predict.main([str(output), "where ?"]) != 0
    assert "text 1 is not a question and a text with a tab between them" in capsys.readouterr().err


@pytest.mark.integration
def test_a_check_counts_windows(job: LiveMigrationJob, tmp_path: Path) -> None:
    asked = asking(job, tmp_path, lacks=False, long=40)
    summary = check(asked)
    assert summary.labels == list(ALWAYS)
    assert summary.rows["train"] == len(prepare(asked.spec, tmp_path / "cache", print).splits["train"]) > 64


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": ["text"]}, "dataset.text: model.task QuestionAnswering takes two columns, of the question and of the text"),
        ({"label": None}, "dataset.label is missing: name the column of the label, which model.task QuestionAnswering learns"),
    ],
)
def test_what_the_task_needs(job: LiveMigrationJob, tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    document = asking(job, tmp_path).model_dump(by_alias=True, mode="json")
    document["spec"]["dataset"] |= change
    with pytest.raises(ValidationError, match=problem):
        LiveMigrationJob.model_validate(document)
