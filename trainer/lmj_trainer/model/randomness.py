"""Randomness as a function: every use of a generator is seeded by where it is, so there is no generator state to save, send or lose."""

import struct
from hashlib import blake2b

import torch


def derive_seed(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one place: ``purpose`` (``dropout``, ``weights:NAME``) and its coordinates (step, micro-batch, unit)."""
    key = struct.pack(f"<Q{len(where)}q", seed, *where) + purpose.encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1


def dropout_seed(seed: int, step: int, micro_batch: int, unit: int) -> int:
    """The seed of all dropout in one unit of the model (see :mod:`lmj_trainer.model.families`) for one micro-batch of one step."""
    return derive_seed(seed, "dropout", step, micro_batch, unit)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the default generator of ``device``: the one that dropout draws from."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
