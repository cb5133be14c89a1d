"""Serves a store of torch: ``serve.py HOST PORT``."""

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public, and not in __all__


def main(host: str, port: int) -> None:
    """Serve until this process is ended."""
    store = TCPStore(host, port, is_master=True, wait_for_workers=False)
    while store.port:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
