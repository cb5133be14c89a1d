"""The task: its rows, and how the gaps of a text are filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.data.texts import check_texts
from lmj_trainer.data.tokens import encode
from lmj_trainer.errors import UserError
from lmj_trainer.task.masked_lm.heads import HEADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lmj_trainer.data.rows import Rows
    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Objective
    from lmj_trainer.task.saved_model import SavedModel

_CANDIDATES = 5
"""That are told of each gap."""
_PIECE = "##"
"""Before a token of WordPiece that goes on with a word."""


class Candidate(Message):
    """What may stand in a gap."""

    token: str
    """As the tokenizer writes it."""
    probability: float
    """Its probability."""


class Filled(Message):
    """What the model says of one text."""

    text: str
    """The text, with the likeliest token in each gap."""
    gaps: list[list[Candidate]]
    """Of each gap, the likeliest tokens, the first ones first."""


class MaskedLM:
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. No labels: targets are the tokens that may be hidden, ``[b, t]``."""

    heads = HEADS
    key: Mapping[str, object] = {"task": "MaskedLM"}
    pipeline = "fill-mask"
    noun = "masked language model"
    evaluation_rows = 8
    windows = False
    masked = True

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """None."""
        return Labels((), by_number=False)

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """Every text has to be there."""
        check_texts(rows, say)

    def ids(self, rows: Rows, labels: Labels) -> NDArray[np.int64]:
        """None."""
        return np.empty(0, np.int64)

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """Each text with what the tokenizer puts around it.

        UserError: of some row nothing can be hidden, or nothing stands for a hidden token.
        """
        if tokenizer.mask_token_id is None:
            raise UserError(
                "the tokenizer has no token for a hidden one (mask_token), which model.task MaskedLM needs: take another model"
            )
        special = np.array(tokenizer.all_special_ids)

        def labels(start: int, chunk: Sequence[Any]) -> NDArray[np.int64]:
            found = []
            for place, tokens in enumerate(chunk, start):
                row = np.array(tokens, np.int64)
                found.append(np.where(np.isin(row, special), NO_LABEL, row))
                if (found[-1] == NO_LABEL).all():
                    raise UserError(
                        f"{rows.where(place)} has no token that the tokenizer knows within {max_length} tokens (dataset.maxLength): "
                        "leave the row out"
                    )
            return np.concatenate(found)

        return encode(tokenizer, rows, max_length, types, ticker, what, labels)

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """``[b, width]``: each token, ``NO_LABEL`` where it is none that may be hidden."""
        targets = np.full((len(rows), width), NO_LABEL, np.int64)
        for place, row in enumerate(rows):
            begin, end = split.offsets[row], split.offsets[row + 1]
            targets[place, : end - begin] = split.labels[begin:end]
        return targets

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Cross entropy."""
        from lmj_trainer.task.causal_lm.objective import TokenObjective

        return TokenObjective(smoothing)

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """Each text with its gaps filled. UserError: one has none, or is too long."""
        import torch

        tokenizer, found = saved.tokenizer, list[tuple[str, Message]]()
        mask = tokenizer.mask_token
        for number, text in enumerate(texts):
            ticker.tick(f"text {number} of {len(texts)}")
            ids = torch.tensor([tokenizer(text, verbose=False)["input_ids"]])
            if ids.shape[1] > saved.longest:
                raise UserError(f"text {number + 1} has {ids.shape[1]} tokens, and the model reads {saved.longest}: shorten it")
            gaps = (ids[0] == tokenizer.mask_token_id).nonzero().flatten()
            if not len(gaps) or len(gaps) != text.count(mask):
                raise UserError(f"text {number + 1} has no gap to fill: write {mask} where a word is missing")
            with torch.inference_mode():
                scores = saved.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, gaps].double()
            if not bool(scores.isfinite().all()):
                raise UserError("the model's outputs are not numbers: it was trained with a learning rate that is too high")
            best = scores.softmax(-1).topk(min(_CANDIDATES, scores.shape[-1]))
            candidates = [
                [
                    Candidate(token=tokenizer.decode([token]).strip(), probability=chance)
                    for token, chance in zip(tokens, chances, strict=True)
                ]
                for tokens, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
            whole = filled(text, mask, [of_gap[0].token for of_gap in candidates])
            found.append((whole, Filled(text=whole, gaps=candidates)))
        return found


def filled(text: str, mask: str, tokens: Sequence[str]) -> str:
    """``text`` with ``tokens`` in place of each ``mask``; a token that goes on with a word is joined to what is before it."""
    whole, *others = text.split(mask)
    for token, after in zip(tokens, others, strict=True):
        piece = token.startswith(_PIECE) and len(token) > len(_PIECE)
        whole = (whole.rstrip() + token.removeprefix(_PIECE) if piece else whole + token) + after
    return whole
