"""A store in memory: what an adapter is at least. Threads may share it."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lmj_trainer.store.port import Entry, Piece, aside_of


class MemoryStore:
    """Has no folders: one is there as long as a file lies in it. A folder is withdrawn by a name that says so, as on object storage."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def describe(self, key: str) -> str:
        return f"memory://{key}"

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        content = b"".join(bytes(piece) for piece in pieces)
        with self._lock:
            self._files[key] = content, time.time()

    def create(self, key: str, content: bytes) -> bool:
        with self._lock:
            if key in self._files:
                return False
            self._files[key] = content, time.time()
            return True

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        content = self._found(key)[0]
        return content[start:] if size is None else content[start : start + size]

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            content = self.get(key, start, len(buffer))
            if len(content) < len(buffer):
                raise OSError(f"{key} ends")
            buffer[:] = content
            start += len(buffer)

    def entry(self, key: str) -> Entry:
        content, when = self._found(key)
        return Entry(len(content), when)

    def files(self, key: str) -> list[str]:
        return sorted({rest for rest in self._below(key) if "/" not in rest})

    def folders(self, key: str) -> list[str]:
        return sorted({rest.partition("/")[0] for rest in self._below(key) if "/" in rest})

    def is_folder(self, key: str) -> bool:
        with self._lock:
            return any(name.startswith(f"{key}/" if key else "") for name in self._files)

    def delete(self, key: str) -> None:
        with self._lock:
            self._files.pop(key, None)

    def remove(self, key: str) -> None:
        if self.is_folder(key):
            raise OSError(f"{key} is not empty")

    def tidy(self, key: str) -> None:
        pass

    def withdraw(self, key: str, name: str) -> str | None:
        with self._lock:
            if f"{key}/{name}" in self._files:
                return None
            aside = aside_of(key)
            for old in [k for k in self._files if k.startswith(f"{key}/")]:
                self._files[aside + old.removeprefix(key)] = self._files.pop(old)
            return aside

    @contextlib.contextmanager
    def local(self, key: str) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(self.get(key))
            file.flush()
            yield Path(file.name)

    def _found(self, key: str) -> tuple[bytes, float]:
        with self._lock:
            if key not in self._files:
                raise FileNotFoundError(key)
            return self._files[key]

    def _below(self, key: str) -> list[str]:
        prefix = f"{key}/" if key else ""
        with self._lock:
            found = [name.removeprefix(prefix) for name in self._files if name.startswith(prefix)]
        if not found and key:
            raise FileNotFoundError(key)
        return found
