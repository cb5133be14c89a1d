"""The environment of a worker."""

import sys
from collections.abc import Mapping

_MALLOC = {
    # No mmap for large blocks and no return of freed memory: without them every step pays page faults again, about 5% of it.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


def worker_environment(base: Mapping[str, str], threads: int, interface: str | None) -> dict[str, str]:
    """``base`` with what a worker needs.

    ``threads`` (``training.threads``) always wins over ``base``: the bits of a sum depend on it. ``interface``: where RPC listens;
    None: as ``base`` says, or by the host's name. The rest are defaults that ``base`` may override.
    """
    fixed = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # NumPy's: it starts its threads when it is imported, whereas a fork server must have none, and no worker multiplies with NumPy.
    fixed["OPENBLAS_NUM_THREADS"] = "1"
    if interface is not None:
        fixed["TP_SOCKET_IFNAME"] = interface
    return {**_MALLOC, **_QUIET, **base, **fixed}


def script_environment(base: Mapping[str, str], interface: str | None) -> dict[str, str]:
    """``base`` with the little that a worker needs that runs a user's script: the script sees it too, so nothing else is changed.

    ``interface``: where the launcher listens for others (``LMJ_INTERFACE``), and gloo too unless ``base`` says another; None: as the host's
    name has it. Output is told as it is written.
    """
    own = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    fixed = {} if interface is None else {"LMJ_INTERFACE": interface}
    return {"PYTHONUNBUFFERED": "1", **own, **base, **fixed}


def default_interface(host: str, platform: str = sys.platform) -> str | None:
    """The interface for RPC when none is given: the loopback one when the agent itself is only reached there."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return "lo0" if platform == "darwin" else "lo"
    return None
