"""A script with an ``lmj.Trainer`` (``model.python: train.py:__main__``), run up to its ``train()``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from lmj_api import handover


def trainer_of(path: str, content: bytes) -> Any:
    """The object whose ``train()`` the script calls first; None: it ends without. Raises what the script raises.

    It is run as ``python SCRIPT`` runs it, but without arguments, and with all generators seeded: all who run it get equal objects, as far as
    it does the same each time.
    """
    from lmj_trainer.own.units import seed_all

    module = ModuleType("__main__")
    module.__file__ = path
    before, arguments = sys.modules["__main__"], sys.argv
    seed_all(0)
    # Classes of the script look their module up by its name.
    sys.modules["__main__"], sys.argv = module, [path]
    try:
        with handover.awaited():
            exec(compile(content, path, "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user asked for it
    except handover.HandedOver as handed:
        return handed.trainer
    finally:
        sys.modules["__main__"], sys.argv = before, arguments
    return None
