"""A file of Azure Files that is being written beside its name."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError

from lmj_trainer.store.patience import ABSENT, REQUEST_SECONDS, code_of, persistently, was_refused
from lmj_trainer.store.port import RenewableError
from lmj_trainer.store.unfinished import unfinished_name

if TYPE_CHECKING:
    from azure.storage.fileshare import ShareClient, ShareFileClient

    from lmj_trainer.store.renewed import Renewed

FIRST_ROOM, MOST_ROOM = 64 << 20, 1 << 30
"""By how many bytes a file grows whose size is not known: it doubles at first."""
_MARK = "lmjupload"
"""Name of what is kept beside a file's content: which call wrote it."""
_MOVED = "its folder was moved or removed while it was written"

T = TypeVar("T")


class Partial:
    """Made for one file, and one attempt to write it. All methods raise AzureError; those with a request make it again."""

    def __init__(self, share: Renewed[ShareClient], path: str) -> None:
        """``path``: that of the file, in the share."""
        self._share, self._path = share, path
        self._mark = {_MARK: secrets.token_hex(16)}
        self._made: list[str] = []
        """Names that may be there; the last is that which is written."""
        self._size = self._room = 0

    def begin(self, size: int) -> None:
        """Make it, and the folders that it needs, with ``size`` bytes of zeros."""
        for again in (True, True, False):  # the folder may be removed in between
            try:
                persistently(self._share, lambda: self._begin(size))
            except AzureError as error:
                if code_of(error) != "ParentNotFound" or not again:
                    raise
                self._make(self._path.rpartition("/")[0])
            else:
                self._size = self._room = size
                return

    def placed(self, parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Each of ``parts`` with the place where it begins, for which there is room then."""
        for part in parts:
            at, self._size = self._size, self._size + len(part)
            if self._size > self._room:
                self._resize(self._room + min(max(FIRST_ROOM, self._room), MOST_ROOM))
            yield at, part

    def write(self, placed: tuple[int, bytes]) -> None:
        """Put a part in its place. Threads may call it."""
        at, part = placed
        self._ask(lambda: self._file().upload_range(part, offset=at, length=len(part), timeout=REQUEST_SECONDS))

    def end(self) -> None:
        """Have it be as long as what was placed."""
        self._resize(self._size)
        found = self._ask(lambda: self._file().get_file_properties(timeout=REQUEST_SECONDS))
        if found.size != self._size:
            # A request to make it longer came late, after its caller had given it up and made it again.
            raise AzureError(f"it has {found.size} bytes in place of {self._size}: a request was late")

    def rename(self, *, replace: bool) -> bool:
        """Give it its name: whether it has it; False: another has, and is not to be replaced."""
        try:
            persistently(
                self._share,
                lambda: self._file().rename_file(self._path, overwrite=replace, metadata=self._mark, timeout=REQUEST_SECONDS),
            )
        except AzureError as error:
            code = code_of(error)
            if code not in ABSENT | {"ResourceAlreadyExists"} or (replace and code not in ABSENT):
                raise
            # It may be that this was done, its answer was lost, and it was asked for again.
            if not self._has_name():
                if code in ABSENT:
                    raise AzureError(_MOVED) from None
                return False
        self._made.pop()
        return True

    def clear(self) -> None:
        """Remove what may be left of it, if the server is there: what led here matters more."""
        for name in self._made:
            try:
                self._share.now.get_file_client(name).delete_file(timeout=REQUEST_SECONDS)
            except HttpResponseError:
                continue  # it was not made, most likely
            except (AzureError, RenewableError):
                return

    def _ask(self, ask: Callable[[], T]) -> T:
        """Of the file, which was made."""
        try:
            return persistently(self._share, ask)
        except AzureError as error:
            if code_of(error) in ABSENT:
                raise AzureError(_MOVED) from None
            raise

    def _file(self) -> ShareFileClient:
        return self._share.now.get_file_client(self._made[-1])

    def _begin(self, size: int) -> None:
        """One request. Each has a name of its own: one that the server does late would empty a file that was made since."""
        folder, _, own = self._path.rpartition("/")
        self._made.append(f"{folder}/" * bool(folder) + unfinished_name(own))
        try:
            self._file().create_file(size, metadata=self._mark, timeout=REQUEST_SECONDS)
        except AzureError as error:
            if was_refused(error):
                self._made.pop()
            raise

    def _make(self, folder: str) -> None:
        """Make it if it is not there, and what it is in."""
        for again in (True, False):
            try:
                persistently(
                    self._share, lambda: self._share.now.get_directory_client(folder).create_directory(timeout=REQUEST_SECONDS)
                )
            except AzureError as error:
                if code_of(error) == "ResourceAlreadyExists":
                    return
                if code_of(error) != "ParentNotFound" or not again:
                    raise
                self._make(folder.rpartition("/")[0])
            else:
                return

    def _resize(self, size: int) -> None:
        self._ask(lambda: self._file().resize_file(size, timeout=REQUEST_SECONDS))
        self._room = size

    def _has_name(self) -> bool:
        """Whether the file is of this call."""
        try:
            found = persistently(
                self._share, lambda: self._share.now.get_file_client(self._path).get_file_properties(timeout=REQUEST_SECONDS)
            )
        except AzureError as error:
            if code_of(error) not in ABSENT:
                raise
            return False
        return self._mark.items() <= (found.metadata or {}).items()
