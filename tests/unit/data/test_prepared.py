import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from lmj_trainer.data.wordpiece import SPECIAL, learn_vocabulary
from lmj_trainer.dataset.prepared import prepare, prepared_digest
from lmj_trainer.dataset.stored import PreparedDataset
from lmj_trainer.errors import UserError


def quiet(line: str) -> None:
    raise AssertionError(f"a short task said {line!r}")


def test_a_scratch_job_learns_its_tokenizer_and_maps_its_rows(job: Any, tmp_path: Path) -> None:
    prepared = prepare(job(dataset__splits={"validationFraction": 0.2}).spec, tmp_path / "cache", quiet)
    assert prepared.labels == ("negative", "positive")
    assert prepared.pad_id == 0
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 32, "validation": 8}
    split = prepared.splits["train"]
    assert isinstance(split.input_ids, np.memmap)
    tokenizer = AutoTokenizer.from_pretrained(prepared.tokenizer)
    assert len(tokenizer) == prepared.vocab_size <= 200
    (ids, types), label = split.row(0), split.labels[0]
    assert types is None
    assert label in (0, 1)
    assert ids[0] == tokenizer.cls_token_id
    assert ids[-1] == tokenizer.sep_token_id
    assert len(ids) <= 32
    assert "film" in tokenizer.decode(ids)


def test_the_second_call_only_maps(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job().spec
    first = prepare(spec, tmp_path / "cache", quiet)
    monkeypatch.setattr("lmj_trainer.dataset.prepared.select", None)
    monkeypatch.setattr("lmj_trainer.dataset.prepared.make_tokenizer", None)
    second = prepare(spec, tmp_path / "cache", quiet)
    assert second.digest == first.digest
    assert (second.splits["train"].input_ids == first.splits["train"].input_ids).all()
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [first.digest]


@pytest.mark.parametrize(
    "change",
    [
        {"dataset__maxLength": 31},
        {"dataset__splits": {"validationFraction": 0.1}},
        {"dataset__maxSamples": {"train": 30}},
        {"training__seed": 1},
        {"model__labels": ["positive", "negative"]},
        {"model__scratch": {"vocabulary": 201}},
    ],
)
def test_the_digest_follows_what_matters(job: Any, change: Any) -> None:
    assert prepared_digest(job(**change).spec) != prepared_digest(job().spec)


def test_the_digest_ignores_what_does_not_matter_and_follows_the_file(job: Any, reviews: Path) -> None:
    before = prepared_digest(job().spec)
    assert prepared_digest(job(training__learningRate=1.0, pipeline__stages=1).spec) == before
    reviews.write_text(reviews.read_text() + "more,positive\n")
    assert prepared_digest(job().spec) != before


def test_several_ranks_at_once_get_the_same(job: Any, tmp_path: Path) -> None:
    spec = job().spec

    def one(_: int) -> PreparedDataset:
        return prepare(spec, tmp_path / "cache", lambda line: None)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(4)))
    assert len({prepared.digest for prepared in found}) == 1
    assert len({prepared.splits["train"].input_ids.tobytes() for prepared in found}) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [found[0].digest]


def test_a_failure_leaves_nothing_behind_and_an_old_building_site_goes(job: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(UserError):
        prepare(job(dataset__label="sentment").spec, cache, quiet)
    assert list(cache.iterdir()) == []
    old, new = cache / ".building-old", cache / ".building-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    prepared = prepare(job().spec, cache, quiet)
    assert sorted(p.name for p in cache.iterdir()) == sorted([new.name, prepared.digest])


def test_damage_is_found_and_named(job: Any, tmp_path: Path) -> None:
    prepared = prepare(job().spec, tmp_path / "cache", quiet)
    tokens = tmp_path / "cache" / prepared.digest / "train.input_ids.npy"
    tokens.write_bytes(tokens.read_bytes()[:-8])
    with pytest.raises(UserError, match=f"the prepared dataset in .*{prepared.digest} is damaged"):
        prepare(job().spec, tmp_path / "cache", quiet)


def test_pairs_have_token_types_where_the_model_reads_them(job: Any, tmp_path: Path, write: Any) -> None:
    path = write("pairs.jsonl", [{"a": "one two", "b": f"three {i}", "y": i % 2} for i in range(8)])
    pairs = {"dataset__source": str(path), "dataset__text": ["a", "b"], "dataset__label": "y"}
    ids, types = prepare(job(**pairs).spec, tmp_path / "cache", quiet).splits["train"].row(0)
    assert types is not None
    separator = ids.tolist().index(SPECIAL.index("[SEP]"))
    assert types.tolist() == [0] * (separator + 1) + [1] * (len(ids) - separator - 1)
    roberta = job(**pairs, model__scratch__architecture="roberta").spec
    assert prepare(roberta, tmp_path / "cache", quiet).splits["train"].token_type_ids is None


def test_a_pretrained_folder_brings_its_tokenizer(job: Any, tmp_path: Path, pretrained: Path) -> None:
    spec = job(model__scratch=None, model__source=str(pretrained)).spec
    prepared = prepare(spec, tmp_path / "cache", quiet)
    ids, _ = prepared.splits["train"].row(0)
    assert prepared.vocab_size == 30522
    expected = AutoTokenizer.from_pretrained(pretrained)('A "bad" film,<br /><br />number 0:\nNA and more')["input_ids"]
    assert ids.tolist() == expected


def test_a_model_folder_without_a_tokenizer_is_named(job: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=f"model {folder} has no tokenizer"):
        prepare(job(model__scratch=None, model__source=str(folder)).spec, tmp_path / "cache", quiet)


def test_the_vocabulary_is_the_same_in_every_process() -> None:
    program = (
        "import json; from lmj_trainer.data.wordpiece import learn_vocabulary;"
        "texts = [f'the {a}{b} {b}{a}ing was {c}ly' for a in 'abcde' for b in 'fghij' for c in 'klmno'];"
        "print(json.dumps(learn_vocabulary([texts], 120)))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60) for _ in range(3)
    ]
    assert len({run.stdout for run in runs}) == 1
    vocabulary = json.loads(runs[0].stdout)
    assert list(vocabulary)[:5] == list(SPECIAL)
    assert list(vocabulary.values()) == list(range(len(vocabulary)))
    assert {"the", "was"} <= vocabulary.keys()


def test_a_small_vocabulary_keeps_its_size() -> None:
    assert len(learn_vocabulary([["the quick brown fox jumps over the lazy dog"]], 16)) <= 16
