"""One tokenized split: flat arrays, memory-mapped, and a row of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -100
"""The label of a token that has none: what cross entropy of torch leaves out."""


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a split, end to end in flat arrays (as a rule mapped read-only from disk).

    Row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``; ``token_type_ids`` runs along with it where the model reads it.
    """

    input_ids: NDArray[np.int32]
    """All tokens ``[tokens]``."""
    token_type_ids: NDArray[np.uint8] | None
    """Which text of a pair each token is of ``[tokens]``, or None."""
    offsets: NDArray[np.int64]
    """Where rows begin ``[rows + 1]``."""
    labels: NDArray[Any]
    """Label ids ``[rows]``, or ``[tokens]`` where each token has one; ``[rows, labels]`` where a row has several; or numbers."""
    max_length: int
    """No row has more tokens."""
    beside: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What the task's evaluation has to know of the rows, by its own names."""

    def __post_init__(self) -> None:
        tokens = len(self.input_ids)
        if self.offsets[0] != 0 or self.offsets[-1] != tokens or len(self.labels) not in (len(self), tokens):
            raise ValueError(
                f"a split of {len(self)} rows, {tokens} tokens and {len(self.labels)} labels has arrays that do not fit"
            )
        if self.token_type_ids is not None and len(self.token_type_ids) != tokens:
            raise ValueError(f"{tokens} tokens have {len(self.token_type_ids)} token types")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.uint8] | None]:
        """Tokens and token types (or None) of row ``i``."""
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a split of {len(self)} rows")
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        types = None if self.token_type_ids is None else self.token_type_ids[part]
        return self.input_ids[part], types
