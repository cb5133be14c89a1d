"""Files below a folder, reached name by name and never through a link: what is read and written lies in that folder, whoever made the names."""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

BLOCK = 1 << 17
PART = ".lmj-part-"
"""How the name of a file begins that is not whole yet."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = _OPEN | os.O_DIRECTORY | os.O_RDONLY


class TreeError(Exception):
    """A name or a file that is not taken; the text says which and why."""


@dataclass(frozen=True)
class Found:
    """A file of a walk."""

    path: str
    size: int
    executable: bool = False


@dataclass
class LeftOut:
    """What a walk passes over."""

    links: int = 0
    special: int = 0
    """Sockets, pipes and devices."""


def names_of(path: str) -> list[str]:
    """The names that lead to ``path`` from the folder; none for the folder itself. Raises TreeError for what could lead out of it."""
    names = path.split("/") if path else []
    if "\0" in path or any(name in ("", ".", "..") for name in names):
        raise TreeError(f"{shown(path)}: not a path below a folder: no part of it may be empty, . or ..")
    return names


def shown(path: str) -> str:
    """``path`` in one line, whatever characters are in it."""
    return path if path.isprintable() else path.encode("utf-8", "backslashreplace").decode().encode("unicode_escape").decode()


def part_name(name: str) -> str:
    """What the file ``name`` is called until it is whole: beside it, and no longer than a name may be."""
    return PART + hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


@dataclass
class Tree:
    """The files in and below the folder ``root``. Calls raise OSError, with the path as its file name, and TreeError."""

    root: str
    beat: Callable[[], None] = field(default=lambda: None)
    """Called between blocks of long work."""

    def kind(self, path: str) -> str:
        """``file``, ``folder``, ``link``, ``special`` or ``none``."""
        names = names_of(path)
        if not names:
            return "folder"
        try:
            with self._folder(names[:-1], path) as folder:
                mode = os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "none"
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
        return next((kind for holds, kind in kinds if holds(mode)), "special")

    def walk(self, path: str, left_out: LeftOut) -> Iterator[Found]:
        """The files below ``path``, each with its path below it, in the order of their names."""
        first, waiting = names_of(path), [""]
        while waiting:
            below = waiting.pop()
            folders: list[str] = []
            with self._folder([*first, *names_of(below)], below) as opened, os.scandir(opened) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    self.beat()
                    place = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_symlink():
                        left_out.links += 1
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(place)
                    elif not entry.is_file(follow_symlinks=False):
                        left_out.special += 1
                    elif not entry.name.startswith(PART):
                        about = entry.stat(follow_symlinks=False)
                        yield Found(place, about.st_size, bool(about.st_mode & stat.S_IXUSR))
            waiting += reversed(folders)

    def size(self, path: str, *, part: bool = False) -> int | None:
        """Of the file, or of what is there of it as a part; None: there is none."""
        names = _file_names(path)
        try:
            with self._folder(names[:-1], path) as folder:
                name = part_name(names[-1]) if part else names[-1]
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return about.st_size if stat.S_ISREG(about.st_mode) else None

    @contextlib.contextmanager
    def reading(self, path: str, *, part: bool = False) -> Iterator[int]:
        """The file, opened."""
        names = _file_names(path)
        with self._folder(names[:-1], path) as folder, _named(path):
            # Not to wait for who opens the other end of a pipe.
            file = os.open(part_name(names[-1]) if part else names[-1], _OPEN | os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise TreeError(f"{shown(path)}: not a regular file")
                yield file
            finally:
                os.close(file)

    def digest(self, path: str, length: int, *, part: bool = False) -> str:
        """SHA-256 of its first ``length`` bytes."""
        with self.reading(path, part=part) as file:
            return self.hashed(file, length).hexdigest()

    def hashed(self, file: int, length: int) -> "hashlib._Hash":
        """SHA-256 of the first ``length`` bytes of an opened file, to go on with."""
        hashed, at = hashlib.sha256(), 0
        while at < length and (block := os.pread(file, min(BLOCK, length - at), at)):
            hashed.update(block)
            at += len(block)
            self.beat()
        return hashed

    @contextlib.contextmanager
    def writing(self, path: str, start: int, executable: bool = False) -> Iterator["Part"]:
        """The file ``path``, to be written from byte ``start`` on, before which it is as its part was. The folders are made."""
        names = _file_names(path)
        with self._folder(names[:-1], path, make=True) as folder, _named(path):
            if stat.S_ISDIR(_mode(names[-1], folder)):
                raise TreeError(f"{shown(path)}: a folder is here, where a file is to be")
            part = Part(folder, names[-1], executable)
            try:
                part.begin(self, start)
                yield part
            finally:
                os.close(part.file)

    @contextlib.contextmanager
    def _folder(self, names: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        at = os.open(self.root, os.O_CLOEXEC | os.O_DIRECTORY | os.O_RDONLY)
        try:
            for name in names:
                with _named(path):
                    below = _step(at, name, path, make)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)


class Part:
    """A file that is written beside the one that it will be, and gets its name when it is whole."""

    def __init__(self, folder: int, name: str, executable: bool) -> None:
        self._folder, self._name, self._executable = folder, name, executable
        self._part = part_name(name)
        there = _about(self._part, folder)
        if there is not None and (not stat.S_ISREG(there.st_mode) or there.st_nlink != 1):
            os.unlink(self._part, dir_fd=folder)  # somebody else's: another name of some other file, say
        self.file = os.open(self._part, _OPEN | os.O_RDWR | os.O_CREAT, 0o666, dir_fd=folder)
        self._hashed, self._size = hashlib.sha256(), 0

    def begin(self, tree: Tree, start: int) -> None:
        """Keep the first ``start`` bytes."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TreeError(f"{shown(self._name)}: another command writes it now; let it end first") from None
        except OSError:
            pass  # a file system without locks: what two write is found by its digest
        os.ftruncate(self.file, start)
        self._hashed, self._size = tree.hashed(self.file, start), start
        os.lseek(self.file, start, os.SEEK_SET)

    def write(self, data: bytes) -> None:
        """Append."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.file, rest) :]
        self._hashed.update(data)
        self._size += len(data)

    def finish(self, digest: str) -> None:
        """Give it its name. Raises TreeError, and removes it, when it is not what ``digest`` is of."""
        os.fsync(self.file)
        if self._hashed.hexdigest() != digest or os.fstat(self.file).st_size != self._size:
            os.unlink(self._part, dir_fd=self._folder)
            raise TreeError(
                f"{shown(self._name)}: what arrived is not what was sent (SHA-256 differs); run the same command again"
            )
        if self._executable:
            with contextlib.suppress(PermissionError):  # a share where the mount says the modes
                os.fchmod(self.file, stat.S_IMODE(os.fstat(self.file).st_mode) | 0o100)
        os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _file_names(path: str) -> list[str]:
    names = names_of(path)
    if not names:
        raise TreeError("no name of a file is given")
    return names


def _step(at: int, name: str, path: str, make: bool) -> int:
    """The folder ``name`` in the folder ``at``, opened."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=at)
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        mode = _mode(name, at)
        if stat.S_ISLNK(mode):
            raise TreeError(f"{shown(path)}: {shown(name)} is a link, and links are not followed; name where it leads") from error
        if error.errno == errno.ENOTDIR and make:
            raise TreeError(f"{shown(path)}: {shown(name)} is a file, where a folder is to be") from error
        raise


def _about(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _mode(name: str, folder: int) -> int:
    about = _about(name, folder)
    return 0 if about is None else about.st_mode


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors name ``path`` and not the last name of it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = shown(path), None
        raise
