"""What a worker imports before it trains: the five seconds that a fork from a fork server saves."""

import contextlib
import gc
import importlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

MODULES = (
    "lmj_trainer.worker.main",
    "lmj_trainer.worker.member",
    "lmj_trainer.worker.preparation",
)
"""The worker's own modules, with all that these import."""


SCRIPT_MODULES = (
    "lmj_trainer.launch.main",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "transformers",
    "transformers.trainer",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
"""What scripts import as a rule. A script that does not gets by without the memory: it is shared."""
OPTIONAL_MODULES = ("accelerate", "datasets", "peft")
"""The same, where they are installed."""
WITHOUT_THREADS = {
    # NumPy's, which starts its threads when it is imported.
    "OPENBLAS_NUM_THREADS": "1",
    # Of Arrow's allocator, which gives memory back in a thread of its own.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Variables with which no library starts a thread when it is imported; each is read then and never again."""


def load(*, lora: bool = False) -> None:
    """Import them, and the models' own; with ``lora``, peft, which takes another second.

    Starts no thread, opens nothing and touches no GPU: a process that did could not be forked.
    """
    _alone(lambda: _load(lora=lora))


def load_for_scripts() -> None:
    """The same for workers that run a user's script: Trainer and what it is used with."""
    _alone(_load_for_scripts)


def _alone(load: Callable[[], None]) -> None:
    """``load()``, without threads and without collecting. The variables that others see stay as they are."""
    gc.disable()  # it looked at half a million objects again and again, a fifth of the time, and hardly one is garbage
    try:
        # Of an environment with more packages than ours, transformers imports more too: pandas or scikit-learn, and with them Arrow.
        with _variables(WITHOUT_THREADS):
            load()
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


def _load_for_scripts() -> None:
    for name in (*SCRIPT_MODULES, *(name for name in OPTIONAL_MODULES if find_spec(name) is not None)):
        importlib.import_module(name)


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Have the environment these meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
