"""The newest checkpoint that a script left behind, as the Trainer of transformers writes them."""

import json
import logging
import re
from pathlib import Path

log = logging.getLogger("lmj.launch")

_NAME = re.compile(r"checkpoint-([0-9]+)")
_STATE = "trainer_state.json"
"""What the first process writes last into a checkpoint: it is not whole before."""
MOST_STATE = 64 << 20
"""Bytes of it: it lists what was logged."""


def newest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of the largest step in ``folder``; None: there is none, or no such folder.

    A folder that cannot be listed counts as empty, and is logged: then the script begins as it does without one.
    """
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be looked through for checkpoints: %s", folder, error)
        return None
    return next((path for step, path in sorted(found, reverse=True) if _complete(path, step)), None)


def step_of(checkpoint: str | None) -> int:
    """The step of a checkpoint by its name; 0: there is none."""
    match = _NAME.fullmatch(Path(checkpoint).name) if checkpoint is not None else None
    return int(match[1]) if match is not None else 0


def _complete(path: Path, step: int) -> bool:
    state = path / _STATE
    try:
        if state.stat().st_size > MOST_STATE:
            return False
        told = json.loads(state.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("global_step") == step
