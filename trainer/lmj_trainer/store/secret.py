"""The job's Secret (``checkpoint.secretName``): a file for each of its keys, which the kubelet replaces while the pod runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmj_api.tokens import STORE_FOLDER, STORE_SECRET
from lmj_trainer.errors import UserError
from lmj_trainer.store.variables import Given

_VERSION = "..data"
"""The link to the folder with all keys of one version: the kubelet turns it when the Secret has changed, and then removes the old folder."""
_LARGEST = 1 << 20
"""Bytes of a whole Secret."""
_TRIALS = 5
"""Versions that may go while they are read."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Those of its keys that begin with ``prefix``."""

    folder: Path
    name: str
    """Its name, for people."""
    prefix: str

    @classmethod
    def of_job(cls, prefix: str, environment: Mapping[str, str] = os.environ) -> Secret | None:
        """That of this process's job; None: it has none, as under ``lmj run``."""
        folder = environment.get(STORE_FOLDER)
        return None if folder is None else cls(Path(folder), environment.get(STORE_SECRET, "of the job"), prefix)

    def read(self) -> dict[str, str]:
        """What it has now, all of one version. A value often ends in a line feed, which no header takes.

        Raises UserError for what cannot be read, or is no text.
        """
        for _ in range(_TRIALS):
            version = self.folder / _VERSION
            try:
                return self._read(version.resolve(strict=True) if version.is_symlink() else self.folder)
            except FileNotFoundError:
                continue  # there is a newer one
            except OSError as error:
                raise UserError(f"the Secret {self.name}: {error.filename}: {error.strerror}") from None
        raise UserError(f"the Secret {self.name}: {self.folder} cannot be read")

    def latest(self, before: Given) -> Given:
        """As :meth:`read`, or ``before`` while it cannot be read."""
        try:
            return self.read()
        except UserError:
            return before

    def _read(self, folder: Path) -> dict[str, str]:
        return {path.name: self._text(path) for path in sorted(folder.iterdir()) if path.name.startswith(self.prefix)}

    def _text(self, path: Path) -> str:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        try:
            if len(content) <= _LARGEST:
                return content.decode().strip()
        except UnicodeDecodeError:
            pass
        raise UserError(f"the Secret {self.name}: its key {path.name} is no text, as a key or a token is")
