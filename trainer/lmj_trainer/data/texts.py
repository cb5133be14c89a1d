"""Texts that are none: a model that is trained on them learns what their rows' labels are, from nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lmj_trainer.data.files import is_file_name
from lmj_trainer.data.messages import is_kind
from lmj_trainer.data.rows import Rows
from lmj_trainer.errors import UserError
from lmj_trainer.wording import WARNING

MARKS = ("NaN", "nan", "NAN", "<NA>", "NaT", "#N/A", "NULL", "null")
"""What programs write where a value is missing. ``None`` and ``NA`` are words too."""


def check_texts(rows: Rows, say: Callable[[str], None]) -> None:
    """UserError for a text that is null, or blank in a file, which its owner can fix; ``say`` gets a warning of those that may be meant."""
    import pyarrow as pa
    from pyarrow import compute

    for column, text in zip(rows.columns, rows.texts, strict=True):
        if pa.types.is_large_list(text.type):
            what = "conversations" if is_kind(text.type) else "lists of words"
            raise UserError(f"column {column!r} of {rows.origin} holds {what}, not text")
        null = _places(text.is_null())
        if len(null):
            problem = f"has no text: column {column!r} is null there{_more(len(null))}"
            raise UserError(f"{rows.where(int(null[0]))} {problem}; remove such rows or fill them in")
        blank = _places(compute.equal(compute.utf8_trim_whitespace(text), ""))
        if len(blank):
            problem = f"{rows.where(int(blank[0]))} has an empty text in column {column!r}{_more(len(blank))}"
            if is_file_name(rows.origin):
                raise UserError(f"{problem}; remove such rows or fill them in")
            say(f"{WARNING}{problem}")
        marked = _places(compute.is_in(text, _marks(text.type)))
        if len(marked):
            place = int(marked[0])
            problem = f"{rows.where(place)} has the text {text[place].as_py()!r} in column {column!r}{_more(len(marked))}"
            say(f"{WARNING}{problem}, which marks a missing value; if it is one, remove such rows or fill them in")


def _places(mask: Any) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _marks(kind: Any) -> Any:
    import pyarrow as pa

    return pa.array(MARKS, kind)


def _more(count: int) -> str:
    return f" ({count} rows in all)" if count > 1 else ""
