"""What a worker imports before it trains: the five seconds that a fork from a fork server saves."""

import gc
import importlib

MODULES = (
    "lmj_trainer.worker.main",
    "lmj_trainer.worker.member",
    "lmj_trainer.worker.preparation",
)
"""The worker's own modules, with all that these import."""


def load(*, lora: bool = False) -> None:
    """Import them, and the models' own; with ``lora``, peft, which takes another second.

    Starts no thread, opens nothing and touches no GPU: a process that did could not be forked.
    """
    gc.disable()  # it looked at half a million objects again and again, a fifth of the time, and hardly one is garbage
    try:
        _load(lora=lora)
    finally:
        # Nor will they be. Untouched by the collector, their pages stay shared with the workers that are forked from this process.
        gc.freeze()
        gc.enable()


def _load(*, lora: bool) -> None:
    for name in MODULES:
        importlib.import_module(name)
    from lmj_trainer.model.families.registry import FAMILIES

    if lora:
        importlib.import_module("peft")
    for name, family in FAMILIES.items():
        # Which of them the model is, is not known here. A decoder's module is left to its worker: all together take a second.
        if not family.causal:
            importlib.import_module(f"transformers.models.{name}.modeling_{name}")
