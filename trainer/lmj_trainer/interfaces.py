"""Network interfaces and their addresses."""

import ipaddress
import socket
import struct
import sys
from pathlib import Path

from lmj_trainer.errors import UserError

_SIOCGIFADDR = 0x8915


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
