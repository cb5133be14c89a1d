"""Where a script under test waits, so that what is done to it is done at a step that the test chose.

The variable ``GATE`` names a folder. While a file ``closed`` is in it, whoever has done as many steps as its content says waits, and says so by
a file ``RANK-STEP``. Every step is written down in ``steps-RANK``, with the world size and the process id. Without the variable nothing of
this is done.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path


def pass_gate(step: int, may_leave: Callable[[], bool] = lambda: False) -> None:
    """Wait as long as the gate is closed after ``step``; ``may_leave``: whoever is told to end does not wait."""
    if "GATE" not in os.environ:
        return
    folder, rank = Path(os.environ["GATE"]), os.environ.get("RANK", "0")
    with (folder / f"steps-{rank}").open("a") as steps:
        steps.write(f"{step} {os.environ.get('WORLD_SIZE', '1')} {os.getpid()}\n")
    while _closed(folder, step) and not may_leave():
        (folder / f"{rank}-{step}").touch()
        time.sleep(0.01)


def _closed(folder: Path, step: int) -> bool:
    try:
        text = (folder / "closed").read_text()
    except FileNotFoundError:
        return False
    return step >= int(text)
