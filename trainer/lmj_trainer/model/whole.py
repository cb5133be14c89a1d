"""A model of any architecture that transformers has, on one stage."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import transformers

from lmj_api.spec import Precision
from lmj_trainer.errors import UserError
from lmj_trainer.model.built import BuiltStage
from lmj_trainer.model.randomness import derive_seed, dropout_seed, reseed
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from lmj_trainer.model.head import Heads
    from lmj_trainer.model.inputs import Inputs
    from lmj_trainer.model.stage import Place


class WholeStage(BuiltStage):
    """All of the model is one unit, which computes what its own ``forward`` does."""

    def __init__(
        self,
        config: Any,
        heads: Heads,
        source: str,
        *,
        seed: int,
        precision: Precision = Precision.FLOAT32,
        recompute: bool = False,
    ) -> None:
        """``source``: the folder with its weights; ``config``: with the task's head. Raises UserError."""
        self._heads, self._source, self._config = heads, source, config
        model, _ = self._built(seed)
        super().__init__(model, range(1), 1, seed=seed, precision=precision, recompute=recompute)
        self.config = config
        if recompute and self.model.supports_gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._takes = inspect.signature(self.model.forward).parameters
        self._watched = True

    def _built(self, seed: int) -> tuple[nn.Module, list[str]]:
        """The model, and which of its weights are random. Raises UserError."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        reseed(derive_seed(seed, "weights"), torch.device("cpu"))
        try:
            model, found = getattr(transformers, self._heads.auto).from_pretrained(
                self._source,
                config=self._config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise UserError(f"model.source {self._source!r} cannot be loaded: {one_line(error)}") from error
        return model, sorted(found["missing_keys"])

    def prefixes_of(self, layers: range) -> list[str]:
        """All names begin so."""
        return [""] if layers else []

    def draw(self, wanted: Mapping[str, Tensor]) -> list[str]:
        """As transformers loads it: what the file lacks is drawn."""
        model, fresh = self._built(self.seed)
        made = dict(model.named_parameters())
        with torch.no_grad():
            for name, weight in wanted.items():
                weight.copy_(made[name])
        return fresh

    def __call__(self, inputs: Inputs, hidden: Tensor | None, place: Place | None) -> Tensor:
        """The head's output. ``place`` seeds dropout; None when the model is in eval mode."""
        given: dict[str, Any] = {"input_ids": inputs.input_ids, "attention_mask": inputs.attention_mask}
        if inputs.token_type_ids is not None:
            given["token_type_ids"] = inputs.token_type_ids
        if "use_cache" in self._takes:
            given["use_cache"] = False
        watched = self._watched and place is not None
        before = [buffer.clone() for buffer in self.model.buffers()] if watched else []
        if place is not None:
            reseed(dropout_seed(self.seed, place.step, place.micro_batch, 0), self.device)
        with self.autocast():
            found = self.model(**given)
        if watched:
            if (name := self.changed(before)) is not None:
                raise UserError(
                    f"model.source {self._source!r}: {name} changes in training beside the weights: it cannot be trained"
                )
            self._watched = False
        output: Tensor = found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)
        return output.float()
