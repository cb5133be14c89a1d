"""The random number generators of a process: Python's, NumPy's, PyTorch's, those of its GPUs."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def states() -> dict[str, Any]:
    """As they are now. Those of libraries that are not loaded, or of GPUs that are not used, are left out."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(found: dict[str, Any]) -> None:
    """Bring them to what :func:`states` returned."""
    random.setstate(found["python"])
    torch.set_rng_state(found["torch"])
    if "numpy" in found and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(found["numpy"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(found["cuda"])
