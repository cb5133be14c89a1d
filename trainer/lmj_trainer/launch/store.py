"""The store at which the processes of a view meet: ``python -m lmj_trainer.launch.store HOST PORT``, a process of the leader's launcher.

It listens before the script needs it. Were it served by rank 0, as where nobody else does, a rank that comes before that one would find
nobody, and torch tries again only after up to half a second. The agent of torchrun serves it, too.
"""

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
