"""The Parquet files of a place: which there are, and each as a file of its store."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmj_api.buckets import in_bucket, split
from lmj_api.spec.streaming import CONVERT, ENDING
from lmj_trainer.data.files import require_file
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.store import posix
from lmj_trainer.store.port import Entry, NotAFileError, Ref, RefusedError, RenewableError
from lmj_trainer.store.registry import open_place
from lmj_trainer.wording import one_line

Open = Callable[[str], Ref]

FIELD = "dataset.source"
MOST_FILES = 10_000
MOST_DEPTH = 16
_ROWS = (".csv", ".tsv", ".jsonl")
"""Endings of files beside the Parquet files that somebody may take for rows of the job."""
_UNSEEN = ("_", ".")
"""How names begin of what programs leave beside their Parquet files (``_SUCCESS``, ``_metadata``)."""


@dataclass(frozen=True)
class Source:
    """A Parquet file, or a folder of them: a path, or a place in object storage."""

    uri: str
    bucket: Ref | None
    """Where it is, in object storage; None: it is a path."""

    @classmethod
    def open(cls, uri: str, open_: Open = open_place) -> Source:
        """What ``dataset.source`` names. Raises UserError for a place that cannot be opened here."""
        if not in_bucket(uri):
            return cls(uri, None)
        scheme, bucket, key = split(uri)
        return cls(uri, Ref(open_(f"{scheme}://{bucket}").store, key))

    def file(self, name: str) -> Ref:
        """The file that :meth:`names` calls so. A link is followed on a file system, as for rows that are read at once."""
        if self.bucket is not None:
            return self.bucket / name if name else self.bucket
        path = Path(self.called(name)).resolve()
        return posix.folder(path.parent) / path.name

    def called(self, name: str) -> str:
        """The file for people."""
        return f"{self.uri}/{name}" if name else self.uri

    def names(self) -> list[str]:
        """The Parquet files below the folder, sorted: ``a.parquet``, ``2024/b.parquet``; of a file alone ``""``. Raises UserError for what is
        none of both, OutageError where storage does not answer.
        """
        with asking(FIELD, self.uri):
            return self._names()

    def _names(self) -> list[str]:
        if self._is_file():
            return [""]
        root = self.bucket or posix.folder(Path(self.uri).resolve())
        found, others = list[str](), list[str]()
        left: list[str] = [""]
        while left:
            above = left.pop()
            folder = root / above if above else root
            inside = [name for name in folder.folders() if not name.startswith(_UNSEEN)]
            if above.count("/") + 1 >= MOST_DEPTH and inside:
                raise UserError(
                    f"{FIELD} {self.uri}: has folders in folders, more than {MOST_DEPTH} deep: name the one with the rows"
                )
            left += [f"{above}/{name}" if above else name for name in inside]
            files = [f"{above}/{name}" if above else name for name in folder.files() if not name.startswith(_UNSEEN)]
            for name in (*inside, *files):
                if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
                    raise UserError(f"{FIELD} {self.uri}: has the name {one_line(name, 60)!r}, which cannot be shown: rename it")
            for name in files:
                # Not read, it would leave rows out without a word; followed, it may lead back to where it is.
                if self.bucket is None and not name.lower().endswith(ENDING) and Path(self.called(name)).is_dir():
                    link = one_line(name, 60)
                    raise UserError(f"{FIELD} {self.uri}: has {link}, a link to a folder: put the folder there itself")
            found += [name for name in files if name.lower().endswith(ENDING)]
            others += [name for name in files if name.lower().endswith(_ROWS)]
            if len(found) + len(left) > MOST_FILES:
                raise UserError(f"{FIELD} {self.uri}: has more than {MOST_FILES} files: write fewer and larger ones")
        if others:
            raise UserError(f"{FIELD} {self.uri}: has {one_line(min(others), 60)}, which is no Parquet file: {CONVERT}")
        if not found:
            raise UserError(f"{FIELD} {self.uri}: has no {ENDING} file: {CONVERT}")
        return sorted(found)

    def _is_file(self) -> bool:
        """Whether it is a file; else it is a folder. Raises UserError when it is neither, or no Parquet file by its name."""
        if self.bucket is None:
            path = Path(self.uri)
            if path.is_dir():
                return False
            require_file(path)
        else:
            try:
                entry: Entry | None = self.bucket.entry()
            except (FileNotFoundError, NotAFileError):
                entry = None
            # An empty object beside a folder is how some storage marks folders.
            if (entry is None or not entry.size) and self.bucket.is_folder():
                return False
            if entry is None:
                raise UserError(f"{FIELD} {self.uri}: there is no such file or folder")
        if not self.uri.lower().endswith(ENDING):
            raise UserError(f"{FIELD} {self.uri}: is no {ENDING} file: {CONVERT}")
        return True


@contextmanager
def asking(field: str, uri: str) -> Iterator[None]:
    """Errors of the store, before training begins, as those of who can mend them."""
    try:
        yield
    except FileNotFoundError as error:
        raise OutageError(f"{field} {uri}: {error} went away while it was looked at") from error
    except RenewableError as error:
        raise OutageError(f"{field}: {one_line(error, 600)}") from error
    except RefusedError as error:
        hint = (
            "name the bucket as it is called, and give credentials that may read it (checkpoint.secretName, or the environment)"
        )
        raise UserError(f"{field}: {one_line(error)}: {hint}") from error
    except NotAFileError as error:
        raise UserError(f"{field} {uri}: is no file: put a Parquet file there, or give what is there another ending") from error
    except OSError as error:
        raise OutageError(f"{field} {uri}: {one_line(error)}") from error
