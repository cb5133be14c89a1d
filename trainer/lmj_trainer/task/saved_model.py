"""A trained model from its folder, for the commands that use one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.nearest import did_you_mean
from lmj_trainer.data.batch import collate
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.split import Split
from lmj_trainer.data.tokens import load_tokenizer
from lmj_trainer.errors import UserError
from lmj_trainer.model.config import max_positions, read_config
from lmj_trainer.task.port import Task
from lmj_trainer.task.registry import task_of
from lmj_trainer.trained import FILE, read_trained
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    import torch


def model_folder(folder: Path) -> Path:
    """``folder``, or the model in it, where it is the output folder of a run."""
    inside = folder / "model"
    there = any((inside / name).is_file() for name in ("config.json", FILE))
    return inside if there and not (folder / "config.json").is_file() else folder


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model with its tokenizer."""

    model: Any
    """Of the task's class in transformers, in evaluation mode."""
    task: Task
    """What it was trained for."""
    tokenizer: Any
    """Its tokenizer."""
    labels: tuple[str, ...]
    """Names of the labels in the order of their ids."""
    longest: int
    """Tokens that it reads at most."""
    types: bool
    """Whether it reads token types."""
    trained_length: int | None = None
    """Tokens at which rows were cut in training; None: not known."""
    chat: bool = False
    """Texts are messages, which it is to answer."""

    @classmethod
    def load(cls, folder: Path) -> "SavedModel":
        """The model that ``save_pretrained`` wrote to ``folder``. UserError: there is none that can be loaded."""
        folder = model_folder(folder)
        if not folder.is_dir():
            near = did_you_mean(folder.name, sorted(p.name for p in folder.parent.iterdir())) if folder.parent.is_dir() else ""
            raise UserError(f"there is no model folder {folder}{near}")
        if (python := read_trained(folder).python) is not None:
            raise UserError(f"model {folder} is of a class of its own, {python}: its README.md says how a program loads it")
        config = read_config(str(folder), None)
        task = task_of(config.architectures or [], config.problem_type)
        if task is None:
            raise UserError(f"model {folder} is no trained classifier (its config.json says {config.architectures})")
        tokenizer = load_tokenizer(str(folder))
        import transformers
        from transformers.utils import logging

        from lmj_trainer.int8 import is_int8, load_int8

        logging.disable_progress_bar()
        try:
            if is_int8(config):
                model = load_int8(folder, config, task.heads.auto)
            else:
                model = getattr(transformers, task.heads.auto).from_pretrained(
                    str(folder), config=config, use_safetensors=True, trust_remote_code=False
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"model {folder} cannot be loaded: {one_line(error)}") from error
        labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
        types = int(getattr(config, "type_vocab_size", 0) or 0) > 1
        return cls(model.eval(), task, tokenizer, labels, max_positions(config), types, read_trained(folder).max_length)

    @property
    def usual_length(self) -> int:
        """Tokens at which rows are cut: as in training, where that is known."""
        return min(self.longest, self.trained_length or self.tokenizer.model_max_length)

    def outputs(
        self, split: Split, batch_size: int, masking: Masking | None = None
    ) -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
        """What the head gives, and the targets, batch by batch in the order of the rows. ``masking``: hides tokens; None: none are hidden."""
        import torch

        pad = self.tokenizer.pad_token_id
        for start in range(0, len(split), batch_size):
            rows = np.arange(start, min(start + batch_size, len(split)))
            batch = collate(split, rows, pad, self.task.targets)
            if masking is not None:
                batch = masking.hidden(batch, [(int(row),) for row in rows])
            inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            if batch.token_type_ids is not None:
                inputs["token_type_ids"] = batch.token_type_ids
            with torch.inference_mode():
                found = self.model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
                output = found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)
                yield output, torch.from_numpy(batch.labels)
