"""The environment of a worker."""

import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from lmj_trainer.errors import UserError

_MALLOC = {
    # No mmap for large blocks and no return of freed memory: without them every step pays page faults again, about 5% of it.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}
_SIOCGIFADDR = 0x8915
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


def interface_of(address: str) -> str:
    """The network interface that has ``address``: peers reach a pod by its own address, whatever its interfaces are called.

    Raises UserError when none has it, or when it is no address.
    """
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError as error:
        raise UserError(f"--address {address}: not an IP address") from error
    has = _has_ipv4 if wanted.version == 4 else _has_ipv6
    names = [name for _, name in socket.if_nameindex()]
    found = next((name for name in names if has(name, wanted.packed)), None)
    if found is None:
        raise UserError(f"--address {address}: no network interface has it (there are {', '.join(names)})")
    return found


def address_of(interface: str) -> str | None:
    """The address of a network interface, of version 4 if it has one; None: it has none, or it cannot be known here."""
    if sys.platform != "linux":
        return None
    if (packed := _ipv4(interface)) is not None:
        return socket.inet_ntoa(packed)
    try:
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return None
    # What is valid on its own network alone (fe80) says nothing without the interface.
    found = [row[0] for row in rows if row[-1] == interface and not row[0].startswith("fe80")]
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(found[0])) if found else None


def _has_ipv4(name: str, packed: bytes) -> bool:
    if sys.platform != "linux":
        raise UserError("--address works on Linux alone; use --interface")
    return _ipv4(name) == packed


def _ipv4(name: str) -> bytes | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None  # an interface without an IPv4 address
    return bytes(answer[20:24])


def _has_ipv6(name: str, packed: bytes) -> bool:
    rows = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
    return any(row[-1] == name and bytes.fromhex(row[0]) == packed for row in rows)
