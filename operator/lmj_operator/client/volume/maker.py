"""Which process made a pod, so that another one on the same machine knows whether it still needs it."""

import os
import socket
from collections.abc import Iterable
from typing import Any

from lmj_operator.client.volume.manifest import MADE_BY

Object = dict[str, Any]
_OVER = ("Succeeded", "Failed")


def this_process() -> str:
    """The machine that this process is on, and its number there."""
    return f"{_machine()}/{os.getpid()}"


def left_over(pods: Iterable[Object]) -> list[Object]:
    """Of these helpers those that nobody needs: they have ended, or who made them is gone. One of another machine ends by itself."""
    return [pod for pod in pods if (pod.get("status") or {}).get("phase") in _OVER or _is_orphan(pod)]


def _is_orphan(pod: Object) -> bool:
    machine, _, number = str((pod["metadata"].get("annotations") or {}).get(MADE_BY)).rpartition("/")
    if machine != _machine() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _machine() -> str:
    """Numbers of processes mean something in one machine, or container of it."""
    try:
        space = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        space = "0"
    return f"{socket.gethostname()}/{space}"
