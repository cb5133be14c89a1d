"""A Secret as a pod has it: files that the kubelet keeps as they are in the cluster."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from lmj_api.tokens import STORE_FOLDER, STORE_SECRET

NAME = "bucket"


class SecretFolder:
    """The job's, in ``folder``."""

    def __init__(self, folder: Path, values: Mapping[str, str]) -> None:
        self.folder, self._version = folder, 0
        self.environment = {STORE_FOLDER: str(folder), STORE_SECRET: NAME}
        """Of a process that is to read it."""
        folder.mkdir(parents=True)
        self.put(values)

    def put(self, values: Mapping[str, str]) -> None:
        """As the kubelet does: all keys beside the old ones, then one rename. ``kubectl create secret`` from a file leaves a line feed."""
        old, self._version = self.folder / f"..version-{self._version}", self._version + 1
        new = self.folder / f"..version-{self._version}"
        new.mkdir()
        for name, value in values.items():
            (new / name).write_text(f"{value}\n")
        link = self.folder / "..data_tmp"
        link.symlink_to(new.name)
        link.rename(self.folder / "..data")
        for name in values:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        shutil.rmtree(old, ignore_errors=True)

    def lead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have this process be one that reads it."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
