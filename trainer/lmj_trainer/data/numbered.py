"""The rows of a dataset that is an object of the user's: known by their numbers, and read where a batch is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_trainer.data.order import Indices


@dataclass(frozen=True)
class Numbered:
    """A row that nobody has read yet."""

    dataset: Any
    """Has ``__len__`` and ``__getitem__``."""
    number: int


class NumberedRows:
    """Rows by their numbers from 0 on."""

    def __init__(self, dataset: Any) -> None:
        """``dataset``: has ``__len__`` and ``__getitem__``."""
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, which: Indices | Sequence[int]) -> list[Any]:
        """Those at the places ``which``, in this order: what reads them draws from generators that are seeded for the batch."""
        return [Numbered(self._dataset, int(number)) for number in which]


def read(rows: Sequence[Any]) -> list[Any]:
    """``rows`` of one dataset, read; rows that are no numbers are as they are. Raises what the dataset raises."""
    if not rows or not isinstance(rows[0], Numbered):
        return list(rows)
    dataset, numbers = rows[0].dataset, [row.number for row in rows]
    # As PyTorch's loader: some datasets read several rows at once.
    several = getattr(dataset, "__getitems__", None)
    return list(several(numbers)) if several else [dataset[number] for number in numbers]
