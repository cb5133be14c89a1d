"""A server of storage whose keys end while it is used: it takes others from then on, and has what it had."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import azfile_server
import azurite
import gcs_server
import s3_server
from azfile_server import AzureFiles
from azurite import Azurite
from gcs_server import GcsServer
from s3_server import S3Server

_Server = S3Server | Azurite | GcsServer | AzureFiles


class RenewableServer:
    """One of ``kind``; leave its context when it is used no more."""

    def __init__(self, kind: str, folder: Path, host: str = "127.0.0.1") -> None:
        """``host``: the address of this machine at which one of S3 is."""
        self._folder, self._running = folder, ExitStack()
        serving: dict[str, Callable[[], AbstractContextManager[_Server]]] = {
            "s3": lambda: s3_server.serving(folder, host=host),
            "azblob": lambda: azurite.serving(folder),
            "gs": gcs_server.serving,
            "azfile": azfile_server.serving,
        }
        self.server: _Server = self._running.enter_context(serving[kind]())

    def __enter__(self) -> "RenewableServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it now."""
        return self.server.environment

    def renew(self) -> None:
        """From now on other keys are right, and those before are refused."""
        server = self.server
        if isinstance(server, GcsServer | AzureFiles):
            self.server = server.renewed()
            return
        # A program of its own reads its keys when it starts.
        self._running.close()
        if isinstance(server, S3Server):
            self.server = self._running.enter_context(s3_server.serving(self._folder, server.port, host=server.host))
        else:
            self.server = self._running.enter_context(azurite.serving(self._folder, server.port))
