"""``lmj.Trainer``: a script of ``transformers.Trainer``, with one import changed."""

import importlib
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmj import arguments, hooks, script
from lmj.errors import JobError
from lmj.job import Job
from lmj.result import Result
from lmj.running import run
from lmj_api import handover
from lmj_api.spec.model import SCRIPT
from lmj_operator.backend.local.threads import processors

SHARDS = 2
"""Parts of a step, where nobody says how many."""
_LONGEST_NAME = 40


@dataclass(frozen=True)
class TrainOutput:
    """What ``train()`` returns, as that of transformers."""

    global_step: int
    """Committed steps."""
    training_loss: float
    """The mean over all steps."""
    metrics: dict[str, float]
    """``train_loss``, and ``train_runtime`` in seconds where this call trained."""


class Trainer:
    """Trains a model of transformers as ``transformers.Trainer`` does, with ranks that can move, die and be more or fewer.

    Arguments are those of ``transformers.Trainer``. Each rank runs the script up to :meth:`train`, and takes model, rows and functions from the
    object; so the script must do the same each time, and takes no arguments. What has no counterpart is a :class:`lmj.JobError` that names it.

    ``shards``: parts of a step's batch, of equal size, whose gradients are added in one order whoever computes them; it is part of the result,
    and the most replicas that can share a step. 2, or 1 where the rows of a step cannot be halved.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: None = None,
        compute_loss_func: None = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[None, None] = (None, None),
        optimizer_cls_and_kwargs: None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        shards: int | None = None,
    ) -> None:
        self.model, self.args, self.data_collator = model, args, data_collator
        self.train_dataset, self.eval_dataset, self.processing_class = train_dataset, eval_dataset, processing_class
        self.compute_metrics, self.preprocess_logits_for_metrics = compute_metrics, preprocess_logits_for_metrics
        self._early_stopping = _early_stopping(callbacks or ())
        self.result: Result | None = None
        """What the job came to; None: :meth:`train` has not returned."""
        for name, value in (
            ("model_init", model_init),
            ("compute_loss_func", compute_loss_func),
            ("optimizers", None if tuple(optimizers) == (None, None) else optimizers),
            ("optimizer_cls_and_kwargs", optimizer_cls_and_kwargs),
        ):
            if value is not None:
                raise JobError(f"{name}: lmj.Trainer has no counterpart of it: leave it out")
        _require_model(model)
        if args is None:
            raise JobError("args: a TrainingArguments of transformers is needed")
        _require_rows("train_dataset", train_dataset)
        if eval_dataset is not None:
            _require_rows("eval_dataset", eval_dataset)
        elif self.evaluates:
            raise JobError("eval_dataset: args.eval_strategy needs one")
        arguments.check(args)
        self._shards = _shards(args, shards)

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises :class:`lmj.JobError`: the subclass has a method that would do nothing here."""
        super().__init_subclass__(**options)
        hooks.refuse(cls)

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations in the midst of training; without them there is one at its end."""
        return str(getattr(self.args.eval_strategy, "value", self.args.eval_strategy)) != "no"

    def job(self) -> Job:
        """The job that :meth:`train` runs, as a job's file would have it. Raises :class:`lmj.JobError`."""
        args, rows, file = self.args, len(self.train_dataset), script.file()
        pieces = self._shards // math.gcd(self._shards, args.gradient_accumulation_steps)
        return Job(
            name=_name(args.run_name or Path(args.output_dir).name),
            model={"python": f"{file}:{SCRIPT}"},
            dataset={"source": str(file)},
            pipeline={"stages": 1, "micro_batches": pieces},
            data_parallel={"shards": self._shards, "replicas": script.asked.replicas},
            # The same whatever the number of replicas is: bits depend on it.
            training={
                **arguments.training(args, rows),
                "early_stopping": self._early_stopping,
                "threads": max(1, processors() // self._shards),
            },
            checkpoint=arguments.checkpoint(args, rows),
            output={
                "path": args.output_dir,
                "weights": "Best" if args.load_best_model_at_end else "Last",
                "tensorboard": "tensorboard" in args.report_to,
            },
        )

    def train(self, resume_from_checkpoint: bool | None = None) -> TrainOutput:
        """Train on this machine, and give ``model`` the weights. A run that was interrupted goes on, and one that has ended is not done again.

        In a rank it hands the object over, and does not return. Raises as :func:`lmj.run` does.
        """
        if handover.is_awaited():
            raise handover.HandedOver(self)
        if not isinstance(resume_from_checkpoint, bool | None):
            raise JobError("resume_from_checkpoint: a run goes on from its newest checkpoint by itself: leave the path out")
        asked, job = script.asked, self.job()
        script.require_only(self)
        self.result = run(job, progress=not self.args.disable_tqdm, fresh=asked.fresh, goes_on=asked.goes_on)
        self.model.load_state_dict(type(self.model).from_pretrained(self._require_trained()).state_dict())
        losses = list(self.result.losses().values())
        loss = sum(losses) / len(losses)
        seconds = {} if self.result.seconds is None else {"train_runtime": self.result.seconds}
        return TrainOutput(self.result.steps, loss, {"train_loss": loss, **seconds})

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Loss and metrics of ``eval_dataset`` with the weights that ``model`` has after :meth:`train`: ``eval_loss``, ``eval_accuracy``."""
        if eval_dataset is not None and eval_dataset is not self.eval_dataset:
            raise JobError("evaluate: rows other than those of the Trainer's eval_dataset are not evaluated: leave them out")
        if self.result is None:
            raise JobError("evaluate: train() comes first, which evaluates eval_dataset")
        # On equal terms the earlier one is the best, and it stands behind the newest.
        there = [each for each in reversed(self.result.evaluations) if each.split in ("validation", "test")]
        if not there:
            raise JobError("evaluate: the Trainer has no eval_dataset")
        chosen = max(there, key=lambda each: each.score) if self.args.load_best_model_at_end else there[-1]
        named = {"loss": chosen.loss, "accuracy": chosen.accuracy, **chosen.metrics}
        return {f"eval_{name}": value for name, value in named.items() if value is not None}

    def predict(self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test") -> Any:
        """What the trained model says of ``test_dataset``: ``predictions``, ``label_ids`` and ``metrics``, as ``transformers.Trainer``
        computes them, in this process.

        Raises :class:`lmj.JobError`: nothing is trained yet.
        """
        self._require_trained()
        _require_rows("test_dataset", test_dataset)
        # The script has it: the model is of it.
        theirs = importlib.import_module("transformers").Trainer(
            model=self.model,
            args=self.args,
            data_collator=self.data_collator,
            eval_dataset=self.eval_dataset,
            processing_class=self.processing_class,
            compute_metrics=self.compute_metrics,
            preprocess_logits_for_metrics=self.preprocess_logits_for_metrics,
        )
        return theirs.predict(test_dataset, ignore_keys, metric_key_prefix)

    def add_callback(self, callback: Any) -> None:
        """As one of ``callbacks``."""
        self._early_stopping = _early_stopping([callback])

    def save_model(self, output_dir: str | None = None) -> None:
        """Copy the model's folder, as ``from_pretrained`` reads it, to ``output_dir``; else it is in ``args.output_dir``, in ``model``."""
        if output_dir is not None:
            shutil.copytree(self._require_trained(), output_dir, dirs_exist_ok=True)

    def _require_trained(self) -> Path:
        if self.result is None or self.result.model is None:
            raise JobError("there is no trained model: train() comes first")
        return self.result.model


def _require_model(model: Any) -> None:
    kind = type(model).__name__
    if kind.startswith("Peft") or getattr(model, "_hf_peft_config_loaded", False):
        raise JobError(
            f"model: {kind} with adapters is not for lmj.Trainer: a job with model.lora trains adapters (docs/tasks.md)"
        )
    if not all(hasattr(model, name) for name in ("forward", "save_pretrained", "from_pretrained", "config")):
        raise JobError(
            f"model: a model of transformers is needed, not {kind}: for any other there is model.python (docs/own-task.md)"
        )


def _require_rows(name: str, rows: Any) -> None:
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")) or isinstance(rows, dict):
        raise JobError(f"{name}: rows are read by their numbers: {type(rows).__name__} is not, it needs __len__ and __getitem__")


def _early_stopping(callbacks: Sequence[Any]) -> dict[str, Any] | None:
    """``training.early_stopping`` of transformers' callback for that. Raises :class:`lmj.JobError`: there is another callback."""
    found = None
    for each in callbacks:
        kind = each.__name__ if isinstance(each, type) else type(each).__name__
        if kind != "EarlyStoppingCallback":
            raise JobError(f"callbacks: lmj.Trainer has no counterpart of {kind}, EarlyStoppingCallback alone: leave it out")
        made = each() if isinstance(each, type) else each
        found = {"patience": made.early_stopping_patience, "threshold": made.early_stopping_threshold or 0.0}
    return found


def _shards(args: Any, asked: int | None) -> int:
    """Parts of a step. Raises :class:`lmj.JobError`: its rows cannot be cut into so many."""
    batch, times = args.per_device_train_batch_size, args.gradient_accumulation_steps
    shards = asked or SHARDS
    fits = batch % (shards // math.gcd(shards, times)) == 0
    if asked is not None and not fits:
        raise JobError(f"shards {asked}: a step of {batch} x {times} rows cannot be cut into so many equal parts")
    return shards if fits else 1


def _name(text: str) -> str:
    """``text`` as a job's name may be."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "script"
