"""Whether a listener of this process still listens: looked up, for to connect to it may be what ends it."""

import contextlib
import os
import socket
import stat
import sys


def listens(port: int) -> bool:
    """Whether this process listens at ``port``. Elsewhere than on Linux it is believed."""
    if sys.platform != "linux":
        return True
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed in between
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                inet = found.family in (socket.AF_INET, socket.AF_INET6)
                if inet and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                    return True
    return False
