"""A source of rows by its name: a file, a saved folder or a hub id; and what it is made of, as a digest."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lmj_api.nearest import did_you_mean
from lmj_api.spec import JobSpec
from lmj_trainer.data import files, saved
from lmj_trainer.data.rows import Rows
from lmj_trainer.errors import UserError
from lmj_trainer.hub import is_hub_id

Say = Callable[[str], None]
_LARGE_FILE = 100_000_000
"""A file of more bytes takes seconds to read: say so."""


class DataSource:
    """What ``dataset.source`` names. Nothing is read before it is asked for, and a dataset with splits is opened once."""

    def __init__(
        self, name: str, config: str | None = None, revision: str | None = None, *, script: bool = False, streamed: bool = False
    ) -> None:
        """``script``: it has the rows, as objects, and nothing is read. ``streamed``: they are read while the job trains, not here.

        UserError: ``name`` is neither a file nor a folder that is there, nor can it be a hub id.
        """
        self.name, self._config, self._revision = name, config, revision
        path = Path(name)
        self.kind = "file" if files.is_file_name(name) else "folder" if path.is_dir() else "hub"
        if script or streamed:
            self.kind = "script" if script else "stream"
        if self.kind == "file":
            files.require_file(path)
        elif self.kind == "hub" and path.is_file():
            raise UserError(f"{path} has no ending that is known: name it {', '.join(files.SUFFIXES)}, as what it is")
        elif self.kind == "hub" and (path.is_absolute() or not is_hub_id(name)):
            near = did_you_mean(path.name, sorted(os.listdir(path.parent))) if path.parent.is_dir() else ""
            raise UserError(f"there is no file or folder {name}{near}")

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """That of a job. Raises as the constructor."""
        dataset, streamed = spec.dataset, spec.dataset.streaming is not None
        return cls(dataset.source, dataset.config, dataset.revision, script=spec.model.is_script, streamed=streamed)

    def read(self, split: str, text: Sequence[str], label: str | None, say: Say) -> Rows:
        """The rows of ``split``: another file if its name says so; a file itself is read whatever ``split`` says."""
        if files.is_file_name(split):
            return files.read_rows(Path(split), text, label)
        if self.kind == "file":
            size = Path(self.name).stat().st_size
            if size > _LARGE_FILE:
                say(f"reading {self.name} ({size / 1e6:.0f} MB)")
            return files.read_rows(Path(self.name), text, label)
        return saved.read_split(self._splits, split, text, label, self.name)

    def read_other(self, split: str, text: Sequence[str], label: str | None, field: str, say: Say) -> Rows:
        """The rows of the validation or test split that ``field`` of the job names. A file has no splits to choose from."""
        if self.kind in ("file", "stream") and not files.is_file_name(split):
            other = f"name another file ({', '.join(files.SUFFIXES)})" + (
                f" or set {field}Fraction" if self.kind == "file" else ""
            )
            raise UserError(f"{field}: {split!r} is not a file, and {self.name} has no splits: {other}")
        return self.read(split, text, label, say)

    @cached_property
    def _splits(self) -> Mapping[str, Any]:
        if self.kind == "folder":
            return saved.open_folder(Path(self.name))
        return saved.open_hub(self.name, self._config, self._revision)

    def commit(self) -> str | None:
        """The commit of the hub that the revision stands for now; None: it is no hub's, or that cannot be told. Raises as when it is read."""
        return saved.hub_commit(self.name, self._config, self._revision) if self.kind == "hub" else None

    def digest(self) -> str:
        """What it is made of: of the content of files; of a hub dataset its name, because its content is not here."""
        if self.kind == "hub":
            return f"hub:{self.name}:{self._config}:{self._revision}"
        return digest_path(Path(self.name))


def digest_path(path: Path, only: Sequence[str] | None = None) -> str:
    """XXH3-128 of a file's content, or of all files (or ``only`` those that are there) under a folder and their names."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    inside = path.rglob("*") if only is None else (path / name for name in only)
    members = [path] if path.is_file() else sorted(p for p in inside if p.is_file())
    for member in members:
        name = "" if member == path else member.relative_to(path).as_posix()
        digest.update(f"\0{name}\0{member.stat().st_size}\0".encode())
        with member.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
