"""Bit-exactness: any number of stages, a plain loop, and a run that was killed and resumed, by ``==``."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_jobs import make_data, make_job, make_model, make_questions, make_words
from peft import PeftModel
from ranks import DEADLINE, Group, forked, group, run
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_api.topology import Topology
from lmj_api.view import Resume
from lmj_operator.plan.membership.common_step import common_step

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "rows.csv")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "bert", "bert")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path, model: Path) -> Path:
    """The output folder of two stages, undisturbed."""
    output = tmp_path_factory.mktemp("undisturbed")
    run(make_job(output, data, model, 2), output / "logs")
    return output


@pytest.fixture(scope="module", autouse=True)
def workers(undisturbed: Path) -> Iterator[None]:
    """Those of the undisturbed run are started cold, all others forked: so these are compared too."""
    with pytest.MonkeyPatch.context() as patch:
        # On few cores, threads of a rank that spin keep them from those that they wait for.
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        with forked():
            yield


def losses(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "each step once, in order"
    return [line["loss"] for line in lines]


def same(a: Path, b: Path) -> None:
    """Every step's loss and the final weights are equal, to the bit."""
    assert losses(a) == losses(b)
    first, second = load_file(a / "model" / "model.safetensors"), load_file(b / "model" / "model.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def plain(job: LiveMigrationJob, folder: Path, loop: str = "plain.py") -> Path:
    """Run the plain loop ``loop``; the folder then looks like an output folder."""
    (folder / "model").mkdir(parents=True)
    (folder / "job.json").write_text(job.to_json())
    arguments = [str(folder / "job.json"), str(folder / "model" / "model.safetensors"), str(folder / "losses.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, str(Path(__file__).parent / loop), *arguments], env=environment, check=True, timeout=DEADLINE)
    lines = [json.dumps({"step": k + 1, "loss": loss}) for k, loss in enumerate(json.loads((folder / "losses.json").read_text()))]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_two_stages_are_a_plain_loop(undisturbed: Path, data: Path, model: Path, tmp_path: Path) -> None:
    assert len(losses(undisturbed)) == 30
    assert losses(undisturbed)[-1] < losses(undisturbed)[0]
    same(undisturbed, plain(make_job(tmp_path / "plain", data, model, 1), tmp_path / "plain"))


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_any_number_of_stages(undisturbed: Path, data: Path, model: Path, tmp_path: Path, stages: int) -> None:
    run(make_job(tmp_path, data, model, stages), tmp_path / "logs")
    same(undisturbed, tmp_path)


SLOW = ("distilbert", "electra", "gpt2", "mistral", "qwen2", "roberta")


@pytest.mark.parametrize("family", [*(pytest.param(f, marks=pytest.mark.slow) for f in SLOW), "llama"])
def test_every_family_is_a_plain_loop(family: str, data: Path, tmp_path: Path) -> None:
    source = make_model(tmp_path / family, family)
    job = make_job(tmp_path / "out", data, source, 2, training={"maxSteps": 8})
    run(job, tmp_path / "logs")
    same(tmp_path / "out", plain(job, tmp_path / "plain"))


@pytest.mark.parametrize("kind", ["albert", pytest.param("deberta-v2", marks=pytest.mark.slow)])
def test_a_type_that_cannot_be_cut_is_a_plain_loop(kind: str, data: Path, tmp_path: Path) -> None:
    source = make_model(tmp_path / kind, kind)
    job = make_job(tmp_path / "out", data, source, 1, training={"maxSteps": 8})
    run(job, tmp_path / "logs")
    same(tmp_path / "out", plain(job, tmp_path / "plain"))


def test_labels_of_words_are_a_plain_loop(model: Path, tmp_path: Path) -> None:
    words = make_words(tmp_path / "words.jsonl")
    changes = {"model": {"task": "TokenClassification"}, "training": {"maxSteps": 12}}
    loop = plain(make_job(tmp_path / "plain", words, model, 1, **changes), tmp_path / "plain")
    for stages in (1, 2):
        output = tmp_path / f"out{stages}"
        run(make_job(output, words, model, stages, **changes), output / "logs")
        same(output, loop)


ENCODERS = ("bert", "distilbert", "roberta", "electra")


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("bert", True),
        *(pytest.param(f, True, marks=pytest.mark.slow) for f in ENCODERS[1:]),
        pytest.param("bert", False, marks=pytest.mark.slow),
    ],
)
def test_hidden_tokens_are_a_plain_loop(family: str, tied: bool, data: Path, tmp_path: Path) -> None:
    source = make_model(tmp_path / family, family, kind=AutoModelForMaskedLM, tie_word_embeddings=tied)
    changes = {"model": {"task": "MaskedLM"}, "dataset": {"label": None}, "training": {"maxSteps": 8}}
    loop = plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain")
    for stages in (1, 2):
        output = tmp_path / f"out{stages}"
        run(make_job(output, data, source, stages, **changes), output / "logs")
        same(output, loop)


def test_batches_by_length_and_sgd_are_a_plain_loop(data: Path, model: Path, tmp_path: Path) -> None:
    training = {"maxSteps": 14, "groupByLength": True, "optimizer": "SGD", "momentum": 0.9, "learningRate": 0.05}
    loop = plain(make_job(tmp_path / "plain", data, model, 1, training=training), tmp_path / "plain")
    for stages in (1, 2):
        output = tmp_path / f"out{stages}"
        run(make_job(output, data, model, stages, training=training), output / "logs")
        same(output, loop)


def test_answers_are_a_plain_loop(tmp_path: Path) -> None:
    model = make_model(tmp_path / "bert", "bert", kind=AutoModelForQuestionAnswering)
    questions = make_questions(tmp_path / "questions.jsonl")
    dataset = {"text": ["question", "text"], "label": "answers"}
    changes = {"model": {"task": "QuestionAnswering"}, "dataset": dataset, "training": {"maxSteps": 12}}
    loop = plain(make_job(tmp_path / "plain", questions, model, 1, **changes), tmp_path / "plain")
    for stages in (1, 2):
        output = tmp_path / f"out{stages}"
        run(make_job(output, questions, model, stages, **changes), output / "logs")
        same(output, loop)


@pytest.mark.slow
def test_several_labels_are_a_plain_loop(data: Path, model: Path, tmp_path: Path) -> None:
    changes = {"model": {"task": "MultiLabelClassification"}, "training": {"maxSteps": 12}}
    loop = plain(make_job(tmp_path / "plain", data, model, 1, **changes), tmp_path / "plain")
    run(make_job(tmp_path / "out", data, model, 2, **changes), tmp_path / "out" / "logs")
    same(tmp_path / "out", loop)


@pytest.mark.parametrize(
    ("tied", "lora"),
    [pytest.param(False, False, marks=pytest.mark.slow), pytest.param(True, False, marks=pytest.mark.slow), (True, True)],
)
def test_a_language_model_is_a_plain_loop(data: Path, tmp_path: Path, tied: bool, lora: bool) -> None:
    """``tied``: with one table of tokens at both ends."""
    source = make_model(tmp_path / "llama", "llama", kind=AutoModelForCausalLM, tie_word_embeddings=tied)
    adapter = {"lora": {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": ["q_proj", "down_proj"]}} if lora else {}
    changes = {"model": {"task": "CausalLM"}, "dataset": {"label": None}, "training": {"maxSteps": 12}, **adapter}
    loop = plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain")
    for stages in (1, 2):
        output = tmp_path / f"out{stages}"
        run(make_job(output, data, source, stages, **changes), output / "logs")
        same(output, loop)
        if lora:
            same_adapter(output, tmp_path / "plain")


TARGETS = {"distilbert": ["q_lin", "v_lin", "lin2"], "bert": ["query", "output.dense"]}


def adapters(family: str, steps: int) -> dict[str, Any]:
    lora = {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": TARGETS.get(family, ["query", "dense"])}
    return {"lora": lora, "training": {"maxSteps": steps}}


def same_adapter(a: Path, b: Path) -> None:
    first, second = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (a, b))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def frozen_is_nowhere(output: Path) -> None:
    """Checkpoints have what is trained, and nothing else."""
    for path in newest_folder(output).glob("*.safetensors"):
        names = {name.removeprefix("exp_avg/").removeprefix("exp_avg_sq/") for name in load_file(path)}
        assert names
        assert all(".lora_" in name or ".modules_to_save." in name for name in names), names


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(family, marks=pytest.mark.slow) for family in ("distilbert", "roberta", "electra"))]
)
def test_adapters_are_peft_s_in_a_plain_loop(family: str, data: Path, tmp_path: Path) -> None:
    """The losses, the adapter and the merged model; for one family of one and of three stages too."""
    source = make_model(tmp_path / family, family)
    changes = adapters(family, 12)
    loop = plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain")
    for stages in (1, 2, 3) if family == "bert" else (2,):
        output = tmp_path / f"out{stages}"
        run(make_job(output, data, source, stages, **changes), output / "logs")
        same(output, loop)
        same_adapter(output, loop)
        frozen_is_nowhere(output)
    bare = AutoModelForSequenceClassification.from_pretrained(source)
    applied = PeftModel.from_pretrained(bare, str(tmp_path / "out2" / "adapter")).merge_and_unload()
    same_model = load_file(tmp_path / "out2" / "model" / "model.safetensors")
    assert all(torch.equal(p, same_model[n]) for n, p in applied.named_parameters())


def survive(job: LiveMigrationJob, folder: Path, victim: int) -> None:
    """Train ``job``, of two stages, to its end; ``victim`` is killed within it, and its successor has the state from memory."""
    with group(job, folder, memory=True) as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        kill(ranks, victim, 4)
        ranks.leave(1 - victim)
        ranks.start(victim)
        resume, _ = common_step(Topology(2), [ranks.holdings[rank] for rank in (0, 1)], [])
        assert resume.checkpoint is None
        assert resume.step >= 4
        ranks.form(resume)
        ranks.finish()


@pytest.mark.slow
def test_adapters_outlive_a_worker(data: Path, tmp_path: Path) -> None:
    """Its successor makes the frozen weights itself."""
    source, changes = make_model(tmp_path / "bert", "bert"), adapters("bert", 12)
    survive(make_job(tmp_path / "killed", data, source, 2, **changes), tmp_path / "logs", 1)
    loop = plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain")
    same(tmp_path / "killed", loop)
    same_adapter(tmp_path / "killed", loop)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_table_at_both_ends_outlives_either_of_them(data: Path, tmp_path: Path, victim: int) -> None:
    source = make_model(tmp_path / "llama", "llama", kind=AutoModelForCausalLM, tie_word_embeddings=True)
    changes = {"model": {"task": "CausalLM"}, "dataset": {"label": None}, "training": {"maxSteps": 12}}
    survive(make_job(tmp_path / "killed", data, source, 2, **changes), tmp_path / "logs", victim)
    same(tmp_path / "killed", plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain"))


@pytest.mark.slow
def test_hidden_tokens_outlive_a_worker(data: Path, tmp_path: Path) -> None:
    source = make_model(tmp_path / "bert", "bert", kind=AutoModelForMaskedLM)
    changes = {"model": {"task": "MaskedLM"}, "dataset": {"label": None}, "training": {"maxSteps": 12}}
    survive(make_job(tmp_path / "killed", data, source, 2, **changes), tmp_path / "logs", 1)
    same(tmp_path / "killed", plain(make_job(tmp_path / "plain", data, source, 1, **changes), tmp_path / "plain"))


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_run_stops_early_where_it_would_have(data: Path, model: Path, tmp_path: Path, victim: int) -> None:
    """No accuracy is better by more than 1: the first evaluation, of step 2, is followed by four that do not count as better."""
    training = {"evalSteps": 2, "earlyStopping": {"patience": 4, "threshold": 1.0}}
    changes = {"dataset": {"splits": {"validationFraction": 0.2}}, "training": training, "output": {"weights": "Best"}}
    run(make_job(tmp_path / "whole", data, model, 2, **changes), tmp_path / "whole-logs")
    assert len(losses(tmp_path / "whole")) == 10
    survive(make_job(tmp_path / "killed", data, model, 2, **changes), tmp_path / "logs", victim)
    same(tmp_path / "whole", tmp_path / "killed")
    evaluations = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "killed")]
    assert evaluations[0] == evaluations[1]
    assert [entry["step"] for entry in evaluations[0]] == [2, 4, 6, 8, 10]


def newest_folder(output: Path) -> Path:
    return output / "checkpoints" / str(newest(output).checkpoint)


def newest(output: Path) -> Resume:
    """The newest whole checkpoint."""
    manifests = sorted((output / "checkpoints").glob("*/manifest.json"))
    if not manifests:
        return Resume(step=0)
    return Resume(step=json.loads(manifests[-1].read_text())["step"], checkpoint=manifests[-1].parent.name)


def committed(step: int) -> Callable[..., bool]:
    return lambda event: event.kind is EventKind.COMMITTED and event.progress.step >= step


def kill(ranks: Group, victim: int, step: int) -> None:
    """SIGKILL ``victim`` when it has committed ``step``; the others must tell that the view is broken, or be told."""
    ranks.ranks[victim].wait(committed(step))
    ranks.ranks[victim].kill()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_killed_and_resumed_is_undisturbed(undisturbed: Path, data: Path, model: Path, tmp_path: Path, seed: int) -> None:
    """SIGKILL of a random rank at random steps, twice; survivors keep their process and join the next view."""
    choose = random.Random(seed)
    with group(make_job(tmp_path, data, model, 2), tmp_path / "logs") as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        pids = {rank: process.process.pid for rank, process in ranks.ranks.items()}
        for step in sorted(choose.sample(range(1, 29), 2)):
            victim = choose.randrange(2)
            kill(ranks, victim, step)
            ranks.start(victim)
            survivor = ranks.ranks[1 - victim].process.pid
            ranks.form(newest(tmp_path))
            assert ranks.ranks[1 - victim].process.pid == survivor == pids[1 - victim]
            pids[victim] = ranks.ranks[victim].process.pid
        ranks.finish()
    same(undisturbed, tmp_path)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_is_killed_anywhere_and_its_memory_goes_on(
    undisturbed: Path, data: Path, model: Path, tmp_path: Path, seed: int
) -> None:
    """SIGKILL at any moment of a step, of either rank or of both: no step is lost, and no checkpoint is read."""
    choose = random.Random(seed)
    with group(make_job(tmp_path, data, model, 2), tmp_path / "logs", memory=True) as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        for step, victims in zip(sorted(choose.sample(range(1, 24), 3)), choose.sample([[0], [1], [0, 1]], 3), strict=True):
            told = ranks.ranks[victims[0]].wait(committed(step)).progress
            assert told is not None
            time.sleep(choose.random() * 0.1)  # anywhere in the next step or two
            for victim in victims:
                ranks.ranks[victim].kill()
            ranks.leave(*{0, 1}.difference(victims))
            ranks.start(*victims)
            resume, _ = common_step(Topology(2), [ranks.holdings[rank] for rank in (0, 1)], [])
            assert resume.step >= told.step
            assert resume.checkpoint is None
            ranks.form(resume)
        ranks.finish()
    same(undisturbed, tmp_path)


def test_resumed_into_another_number_of_stages(undisturbed: Path, data: Path, model: Path, tmp_path: Path) -> None:
    """All ranks of two stages die; three stages go on from their checkpoint."""
    with group(make_job(tmp_path, data, model, 2), tmp_path / "logs") as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        ranks.ranks[0].wait(lambda event: event.kind is EventKind.CHECKPOINTED)
    resume = newest(tmp_path)
    assert resume.step >= 7
    with group(make_job(tmp_path, data, model, 3), tmp_path / "logs") as ranks:
        ranks.start()
        ranks.form(resume)
        ranks.finish()
    same(undisturbed, tmp_path)


@pytest.mark.slow
def test_recomputing_activations_changes_nothing(undisturbed: Path, data: Path, model: Path, tmp_path: Path) -> None:
    run(make_job(tmp_path, data, model, 2, training={"gradientCheckpointing": True}), tmp_path / "logs")
    same(undisturbed, tmp_path)


@pytest.mark.slow
def test_bfloat16_is_the_same_for_any_number_of_stages(data: Path, model: Path, tmp_path: Path) -> None:
    for stages in (1, 2):
        out = tmp_path / str(stages)
        run(make_job(out, data, model, stages, training={"precision": "BFloat16", "maxSteps": 8}), out / "logs")
    same(tmp_path / "1", tmp_path / "2")


def test_float16_is_a_plain_loop_with_a_grad_scaler_however_often_it_breaks_off(data: Path, model: Path, tmp_path: Path) -> None:
    """The first steps overflow. A state in memory and a checkpoint both know the scale, and how many updates were left out."""
    training = {"precision": "Float16", "maxSteps": 24}
    model = shutil.copytree(model, tmp_path / "bert")
    weights = load_file(model / "model.safetensors")
    weights["classifier.weight"] *= 1000
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    loop = plain(make_job(tmp_path / "plain", data, model, 1, training=training), tmp_path / "plain")
    one, killed = tmp_path / "one", tmp_path / "killed"
    run(make_job(one, data, model, 1, training=training), one / "logs")
    same(one, loop)
    lines = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    assert 1 <= sum(line["gradNorm"] is None for line in lines) < 10
    with group(make_job(killed, data, model, 2, training=training, checkpoint={"everySteps": 5}), killed / "logs") as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        kill(ranks, 1, 3)
        ranks.start(1)
        ranks.form(newest(killed))
        kill(ranks, 0, 16)
        ranks.start(0)
        ranks.form(newest(killed))
        ranks.finish()
    same(killed, loop)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({"precision": "BFloat16"}, marks=pytest.mark.slow, id="precision-BFloat16"),
        pytest.param({"precision": "Float16"}, id="precision-Float16"),
        pytest.param({"gradientCheckpointing": True}, id="gradientCheckpointing-True"),
        pytest.param({"threads": 2}, marks=pytest.mark.slow, id="threads-2"),
    ],
)
def test_other_ways_to_compute_are_the_same_for_replicas_of_stages(
    data: Path, model: Path, tmp_path: Path, training: dict[str, Any]
) -> None:
    """Two stages have several micro-batches in flight, so what is recomputed comes behind others; two threads sum in another order than one."""
    for name, stages, replicas in (("one", 1, 1), ("four", 2, 2)):
        out, parallel = tmp_path / name, {"shards": 4, "replicas": replicas}
        run(make_job(out, data, model, stages, training={"maxSteps": 6, **training}, dataParallel=parallel), out / "logs")
    same(tmp_path / "one", tmp_path / "four")
