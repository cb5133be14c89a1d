"""The trainer of a script as a class of the user's own: what ``transformers.Trainer`` does with a model, its rows and its loss."""

from __future__ import annotations

import copy
import inspect
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase, default_data_collator
from transformers.trainer_pt_utils import nested_concat, nested_numpify
from transformers.utils.generic import find_labels

from lmj_trainer.data.numbered import NumberedRows, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

_NO_LABEL = -100
"""What transformers' losses leave out."""
_PREFIX = "eval_"
"""With which metrics may be named."""


class ScriptTask:
    """``trainer``: an object of ``lmj.Trainer``, whose arguments are read by name. Methods are those of a class in ``model.python``."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, args, kind = trainer, trainer.args, type(trainer.model)
        self._labels: list[str] = find_labels(kind) if args.label_names is None else list(args.label_names)
        self._columns: set[str] | None = None
        if args.remove_unused_columns:
            accepted = inspect.signature(trainer.model.forward).parameters
            self._columns = {*accepted, *self._labels, "label", "label_ids"}
        self._collator = trainer.data_collator or _usual_collator(trainer.processing_class)
        self.evaluation_rows = int(args.per_device_eval_batch_size)
        if trainer.compute_metrics is not None:
            self.keep, self.evaluate = self._keep, self._evaluate
        if args.metric_for_best_model is not None:
            self.score = self._score

    def splits(self) -> dict[str, NumberedRows]:
        """The rows: an evaluation in the midst of training is of ``validation``, one at its end alone of ``test``."""
        trainer, found = self._trainer, {"train": NumberedRows(self._trainer.train_dataset)}
        if trainer.eval_dataset is not None:
            found["validation" if trainer.evaluates else "test"] = NumberedRows(trainer.eval_dataset)
        return found

    def look(self) -> None:
        """Look at a row: a loss that is a mean over tokens counts them, all others count rows."""
        if len(self._trainer.train_dataset):
            _, targets = self.collate(NumberedRows(self._trainer.train_dataset).rows([0]))
            if (labels := targets.get("labels")) is not None and labels.dim() > 1 and not labels.is_floating_point():
                self.samples = self._tokens

    def model(self) -> nn.Module:
        """With the weights that it has in the script."""
        made: nn.Module = copy.deepcopy(self._trainer.model).cpu()
        return made

    def collate(self, rows: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the model reads, labels too, and the labels alone."""
        columns, found = self._columns, read(rows)
        if columns is not None:
            found = [{key: row[key] for key in row if key in columns} if isinstance(row, dict) else row for row in found]
        batch = dict(self._collator(found))
        return batch, {name: batch[name] for name in self._labels if name in batch}

    def loss(self, output: Any, targets: Mapping[str, Any]) -> Tensor:
        """The model's own."""
        loss = output.get("loss") if isinstance(output, dict) else output[0]
        if loss is None:
            names = ", ".join(targets) or "none"
            raise ValueError(
                f"the model gives no loss of its own: it needs labels, and gets {names} of {', '.join(self._labels)}"
            )
        found: Tensor = loss
        return found

    def save(self, model: Any, folder: Path) -> None:
        """As ``from_pretrained`` reads it."""
        model.save_pretrained(folder)
        if self._trainer.processing_class is not None:
            self._trainer.processing_class.save_pretrained(folder)

    def _keep(self, output: Any, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Predictions and labels of a micro-batch, as ``compute_metrics`` gets those of all."""
        trainer = self._trainer
        ignored = ["loss", *getattr(trainer.model.config, "keys_to_ignore_at_inference", ["past_key_values"])]
        values = [value for key, value in output.items() if key not in ignored] if isinstance(output, dict) else output[1:]
        predictions, labels = _one(values), _one([targets[name] for name in self._labels])
        if trainer.preprocess_logits_for_metrics is not None:
            predictions = trainer.preprocess_logits_for_metrics(predictions, labels)
        return {"predictions": predictions, "labels": labels}

    def _evaluate(self, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        predictions, labels = (_whole([part[name] for part in kept]) for name in ("predictions", "labels"))
        found = self._trainer.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))
        return {name.removeprefix(_PREFIX): value for name, value in found.items()}

    def _score(self, metrics: Mapping[str, float]) -> float:
        args = self._trainer.args
        name = args.metric_for_best_model.removeprefix(_PREFIX)
        if name not in metrics:
            raise ValueError(f"args.metric_for_best_model {name!r} is none of an evaluation's: it has {', '.join(metrics)}")
        return metrics[name] if args.greater_is_better else -metrics[name]

    def _tokens(self, targets: Mapping[str, Tensor]) -> Tensor:
        model, labels = self._trainer.model, targets["labels"]
        return (labels[..., 1:] if _shifts(model) else labels).ne(_NO_LABEL).sum()


def _one(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _whole(parts: Sequence[Any]) -> Any:
    """Of all micro-batches, as arrays of numpy: shorter ones are filled up."""
    return nested_numpify(reduce(partial(nested_concat, padding_index=_NO_LABEL), parts))


def _usual_collator(processing: Any) -> Any:
    return DataCollatorWithPadding(processing) if isinstance(processing, PreTrainedTokenizerBase) else default_data_collator


def _shifts(model: Any) -> bool:
    """Whether its loss compares each token with the one before it."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    kind = getattr(model, "loss_type", None)
    if kind is None and "LMHead" in type(model).__name__:
        kind = "ForCausalLM"  # older models do not say it: GPT2LMHeadModel
    return LOSS_MAPPING.get(kind) is ForCausalLMLoss and not encodes
