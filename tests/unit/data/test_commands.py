"""``evaluate`` and ``predict`` with a model that was saved, but not trained, here."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bucket_fixture import s3, s3_of_session
from s3_server import S3Server

from lmj_api.protocol import Evaluation
from lmj_trainer import evaluate, predict
from lmj_trainer.checkpoint import main as checkpoints
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.model.config import load_config
from lmj_trainer.store.registry import open_place
from lmj_trainer.task.saved_model import SavedModel
from lmj_trainer.trained import write_trained

__all__ = ["s3", "s3_of_session"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from lmj_api.spec import LiveMigrationJob

    folder = tmp_path_factory.mktemp("trained")
    data = folder / "data.csv"
    data.write_text("text,label\n" + "good film,yes\nbad film,no\n" * 4)
    spec = {
        "model": {
            "scratch": {"layers": 1, "hiddenSize": 16, "heads": 2, "intermediateSize": 16, "vocabulary": 100, "maxPositions": 16}
        },
        "dataset": {"source": str(data), "text": ["text"], "label": "label", "maxLength": 16},
        "output": {"path": str(folder / "out")},
    }
    job = LiveMigrationJob.model_validate({"metadata": {"name": "test"}, "spec": spec})
    prepared = prepare(job.spec, folder / "cache", lambda line: None)
    torch.manual_seed(0)
    trained = AutoModelForSequenceClassification.from_config(load_config(job.spec.model, prepared.labels, prepared.vocab_size))
    with torch.no_grad():
        trained.classifier.bias.copy_(torch.tensor([0.0, 20.0]))  # says "yes" to everything
    trained.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(prepared.tokenizer).save_pretrained(folder / "model")
    return folder / "model"


def test_evaluate_counts_what_the_model_says(model: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = write("test.csv", "review,sentiment\ngood,yes\nbad film,no\nfilm,yes\n")
    argv = [str(model), str(data), "--text", "review", "--label", "sentiment", "--batch-size", "2"]
    assert evaluate.main([*argv, "-o", "json"]) == 0
    result = Evaluation.model_validate_json(capsys.readouterr().out)
    assert result.confusion == [[0, 1], [0, 2]]
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.f1 == pytest.approx(0.8)
    assert result.loss == pytest.approx(20 / 3, rel=0.1)
    assert evaluate.main(argv) == 0
    assert "accuracy 0.6667" in capsys.readouterr().out


def test_evaluate_takes_rows_from_a_bucket(model: Path, write: Any, s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    data = write("test.csv", "text,label\ngood,yes\nbad film,no\nfilm,yes\n")
    (open_place(s3.bucket("data")) / "held/test.csv").put([data.read_bytes()])
    assert evaluate.main([str(model), str(data), "-o", "json"]) == 0
    here = capsys.readouterr().out
    assert evaluate.main([str(model), "s3://data/held/test.csv", "-o", "json"]) == 0
    assert capsys.readouterr().out == here
    assert evaluate.main([str(model), "s3://data/held/no.csv"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "error: DATA s3://data/held/no.csv: there is no such file or folder"
    assert evaluate.main([str(model), "s3://data/held/test.csv", "--label", "lable"]) == 2
    assert "s3://data/held/test.csv has no column 'lable'" in capsys.readouterr().err


def test_predict_texts_and_lines(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert predict.main([str(model), "a good film", "bad"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t") for line in lines] == [["yes", "1.0000", "a good film"], ["yes", "1.0000", "bad"]]
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n\n"))
    assert predict.main([str(model), "-o", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["text"] for entry in found] == ["one", "two", ""]
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1)


def test_weights_that_are_no_numbers(model: Path, write: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(model, tmp_path / "broken")
    weights = {name: tensor * float("nan") for name, tensor in load_file(broken / "model.safetensors").items()}
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert predict.main([str(broken), "a good film"]) == 2
    assert "error: the model's outputs are not numbers" in capsys.readouterr().err
    data = write("test.csv", "text,label\ngood,yes\nbad film,no\n")
    assert evaluate.main([str(broken), str(data), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["loss"] is None
    assert evaluate.main([str(broken), str(data)]) == 0
    assert "loss not a number" in capsys.readouterr().out


def test_predict_pairs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main([str(model), "a film\ta good one"]) == 0
    assert capsys.readouterr().out.startswith("yes\t")


def test_on_a_terminal_predict_asks_for_texts_and_does_not_wait_for_them(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO("never read\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert predict.main([str(model)]) == 2
    told = f'lmj predict {model} "a text", or lines on stdin: lmj predict {model} < texts.txt'
    assert capsys.readouterr().err == f"error: there is no text to predict: {told}\n"
    assert terminal.tell() == 0


@pytest.mark.parametrize("command", [evaluate.main, predict.main, checkpoints.main])
def test_the_usage_is_of_the_command_that_was_typed(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(["--help"])
    assert capsys.readouterr().out.startswith("usage: lmj ")


def test_evaluate_knows_the_columns_and_the_length_of_the_training(
    model: Path, write: Any, capsys: pytest.CaptureFixture[str], job: Any, tmp_path: Path
) -> None:
    model = shutil.copytree(model, tmp_path / "run" / "model")
    dataset = job(dataset__text=["Review Text"], dataset__label="Class", dataset__maxLength=3).spec.dataset
    write_trained(model, dataset)
    data = write("test.csv", "Class,Review Text\nyes,good\nno,bad film\n")
    assert SavedModel.load(model).usual_length == 3
    for folder in (model, model.parent):  # the run's output folder does too
        assert evaluate.main([str(folder), str(data), "-o", "json"]) == 0
        assert Evaluation.model_validate_json(capsys.readouterr().out).samples == 2
    other = write("other.csv", "label,Review Text\nyes,good\n")
    assert evaluate.main([str(model), str(other)]) == 2
    assert "has no column 'Class'" in capsys.readouterr().err
    assert evaluate.main([str(model), str(other), "--label", "label"]) == 0


def test_what_a_model_says_of_its_training_may_be_damaged(
    model: Path, write: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = shutil.copytree(model, tmp_path / "model")
    (model / "lmj.json").write_text('{"text": 5}')
    assert evaluate.main([str(model), str(write("test.csv", "text,label\na,yes\n"))]) == 2
    error = capsys.readouterr().err
    assert "lmj.json is damaged (text: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (evaluate.main, ["MODEL", "/no.csv"], "there is no file /no.csv"),
        (evaluate.main, ["MODEL", "DATA", "--text", "txt"], "has no column 'txt'; did you mean text?"),
        (evaluate.main, ["MODEL", "DATA"], "has label 'maybe', which is not one of no, yes"),
        (evaluate.main, ["/no/model", "DATA"], "there is no model folder /no/model"),
        (evaluate.main, ["MODEL", "DATA", "--max-length", "17"], "--max-length 17 is not between 2 and the 16 tokens"),
        (evaluate.main, ["MODEL", "DATA", "--batch-size", "0"], "--batch-size 0 is not 1 or more"),
        (evaluate.main, ["MODEL", "DATA", "--text", "a", "b", "c"], "--text names 3 columns"),
        (evaluate.main, ["MODEL"], "the following arguments are required: data"),
        (predict.main, ["/no/model", "text"], "there is no model folder /no/model"),
        (predict.main, ["PRETRAINED", "text"], "is no trained classifier (its config.json says ['BertModel'])"),
        (predict.main, ["MODEL", "a\tb", "c"], "text 2 has 1 parts"),
        (predict.main, ["MODEL", "-o", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_bad_input_is_one_line_and_2(
    command: Any, argv: list[str], message: str, model: Path, pretrained: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write("data.csv", "text,label\na,yes\nb,maybe\n")
    names = {"MODEL": str(model), "DATA": str(data), "PRETRAINED": str(pretrained)}
    assert command([names.get(word, word) for word in argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_pickled_weights_are_not_loaded(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    folder = tmp_path / "pickled"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    assert predict.main([str(folder), "text"]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
