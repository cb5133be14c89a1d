"""The arithmetic of forward and backward passes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from lmj_api.spec import Precision

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_DTYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """In what is computed on ``device``. Weights are not cast once for all: a micro-batch's graph must not depend on another one's."""
    dtype = _DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype, cache_enabled=False)
