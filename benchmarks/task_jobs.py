"""A model to train, its data, and one training of it: by ``lmj run`` with one rank, or by ``transformers.Trainer``."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from killable import Ours
from steps import Steps, median_step

CONTENDERS = Path(__file__).parent / "contenders"
LENGTH = 128
ROWS = 512
LOOK_SECONDS = 0.5
WORDS = 1000
QUIET = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
LORA = {"r": 8, "alpha": 16, "targetModules": ["q_proj", "v_proj"]}


@dataclass(frozen=True, eq=False)
class Work:
    """What is trained."""

    name: str
    family: str
    task: str
    config: dict[str, Any]
    batch: int
    steps: int
    lora: dict[str, Any] | None = None


BERT = Work("BERT-base, classification", "bert", "SequenceClassification", {}, batch=8, steps=10)
_LLAMA = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1408,
}
LLAMA = Work("a small Llama, adapters", "llama", "CausalLM", _LLAMA, batch=8, steps=24, lora=LORA)
LLAMA_FULL = Work("a small Llama, in full", "llama", "CausalLM", _LLAMA, batch=8, steps=24)
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


@dataclass(frozen=True)
class Result:
    """One training."""

    step: float
    """Seconds a step, the median; the first two are left out."""
    first: float
    """Seconds from the start of the command to the end of the first step."""
    peak_mb: float
    """Highest resident memory of the process that computes."""
    checkpoint_mb: float | None = None
    """Size of its last checkpoint."""


class Workshop:
    """Folders of models and data, made once, and of trainings."""

    def __init__(self, folder: Path, threads: int, tiny: bool) -> None:
        self._folder, self._threads, self._tiny = folder, threads, tiny
        self._runs = 0
        self.data = folder / "rows.jsonl"
        draw = random.Random(0)
        words = [f"w{n}" for n in range(WORDS)]
        # Longer than what is read of them, so that all batches are of one length.
        rows = [{"text": " ".join(draw.choices(words, k=2 * LENGTH)), "label": n % 2} for n in range(ROWS)]
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def ours(self, work: Work) -> Result:
        """By ``lmj run``, with one rank."""
        folder = self._next()
        job = self._job(work, folder)
        file = folder.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(job))
        began, peak = time.time(), 0.0
        command = [sys.executable, "-m", "lmj_operator.cli.main", "run", str(file), "--plain"]
        looked = Ours(folder)
        with self._started(command, folder, QUIET) as process:
            pid = 0
            while process.poll() is None:
                # To look for the worker among all processes takes time of the processors that it computes with.
                if (now := peak_mb(pid)) == 0 and peak == 0:
                    pid = next(iter(looked.workers().values()), 0)
                peak = max(peak, now)
                time.sleep(LOOK_SECONDS)
        steps = Steps(folder / "metrics.jsonl")
        steps.look()
        sizes = [sum(f.stat().st_size for f in path.iterdir()) for path in (folder / "checkpoints").glob("step-*")]
        step, first = _times(steps.seen, began)
        return Result(step, first, peak, max(sizes) / 1e6)

    def trainer(self, work: Work, settings: Mapping[str, str] = MappingProxyType({})) -> Result:
        """By ``transformers.Trainer``, with ``settings`` in its environment."""
        folder = self._next()
        file, out = folder.with_suffix(".json"), folder.with_suffix(".jsonl")
        about: dict[str, Any] = {"source": str(self._model(work)), "data": str(self.data), "task": work.task, "lora": work.lora}
        about |= {"threads": self._threads, "length": LENGTH, "batch": work.batch, "steps": work.steps}
        file.write_text(json.dumps(about))
        began = time.time()
        threads = {"OMP_NUM_THREADS": str(self._threads), "MKL_NUM_THREADS": str(self._threads)}
        command = [sys.executable, str(CONTENDERS / "hf_trainer.py"), str(file), str(out)]
        with self._started(command, folder, QUIET | threads | dict(settings)) as process:
            process.wait()
        *lines, last = [json.loads(line) for line in out.read_text().splitlines()]
        step, first = _times({(line["step"], line["time"]) for line in lines}, began)
        return Result(step, first, last["peak_mb"])

    def _next(self) -> Path:
        self._runs += 1
        return self._folder / f"run-{self._runs}"

    def _started(self, command: list[str], folder: Path, environment: dict[str, str]) -> _Started:
        return _Started(command, folder.with_suffix(".log"), os.environ | environment)

    def _job(self, work: Work, folder: Path) -> dict[str, Any]:
        model = {"task": work.task, "source": str(self._model(work)), **({"lora": work.lora} if work.lora else {})}
        label = {} if work.task == "CausalLM" else {"label": "label"}
        return {
            "apiVersion": "lmj.dev/v1alpha1",
            "kind": "LiveMigrationJob",
            "metadata": {"name": "bench"},
            "spec": {
                # There will be no other stages.
                "pipeline": {"stages": 1, "microBatches": 1, "firstInHalves": False},
                "model": model,
                "dataset": {
                    "source": str(self.data),
                    "text": ["text"],
                    **label,
                    "splits": {"validationFraction": 0},
                    "maxLength": LENGTH,
                },
                "training": {
                    "maxSteps": work.steps,
                    "batchSize": work.batch,
                    "learningRate": 1e-5,
                    "threads": self._threads,
                },
                "checkpoint": {"everySteps": 1_000_000},
                "output": {"path": str(folder), "weights": "Last"},
            },
        }

    def _model(self, work: Work) -> Path:
        """A folder with random weights and a tokenizer of whole words."""
        folder = self._folder / f"model-{work.family}"
        if not folder.exists():
            subprocess.run([sys.executable, "-c", _MAKE, str(folder), work.family, json.dumps(self._config(work))], check=True)
        return folder

    def _config(self, work: Work) -> dict[str, Any]:
        return TINY if self._tiny else work.config


_MAKE = f"""
import json, sys
from pathlib import Path
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, BertTokenizerFast
folder, family, more = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{{n}}" for n in range({WORDS}))]
folder.mkdir(parents=True)
(folder / "vocab.txt").write_text("\\n".join(words) + "\\n")
tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
sizes = {{"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 3, "num_labels": 2}} if family == "llama" else {{}}
torch.manual_seed(0)
kind = AutoModelForCausalLM if family == "llama" else AutoModelForSequenceClassification
kind.from_config(AutoConfig.for_model(family, **(sizes | more))).save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""


class _Started:
    """A process that is to end well; killed when something else fails first."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._command, self._log, self._environment = command, log, environment

    def __enter__(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        return self._process

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
            self._process.wait()
        elif self._process.returncode != 0:
            raise RuntimeError(f"{self._command[1:3]} ended with {self._process.returncode}:\n{self._log.read_text()[-2000:]}")


def peak_mb(pid: int) -> float:
    """Highest resident memory that process ``pid`` ever had, MB; 0: it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


def _times(seen: set[tuple[int, float]], began: float) -> Iterator[float]:
    """Seconds of a step, and to the end of the first."""
    yield median_step((step, at) for step, at in seen if step > 2)
    yield min(at for _, at in seen) - began
