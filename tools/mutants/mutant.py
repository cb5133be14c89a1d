"""The mutants of the project: each with a name that survives edits around it."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants.operators import mutations

ROOT = Path(__file__).resolve().parents[2]
_WORKER = ("keeper", "snapshots", "checkpointer", "saving", "ending", "recorder", "fence")
TARGETS = (
    "trainer/lmj_trainer/state/*.py",
    "trainer/lmj_trainer/group/*.py",
    "trainer/lmj_trainer/strategy/**/*.py",
    "trainer/lmj_trainer/follow/*.py",
    "trainer/lmj_trainer/checkpoint/*.py",
    *(f"trainer/lmj_trainer/worker/{name}.py" for name in _WORKER),
    "operator/lmj_operator/plan/**/*.py",
)
_ORDERED = ("trainer/lmj_trainer/state/", "trainer/lmj_trainer/group/commit.py", "trainer/lmj_trainer/checkpoint/write.py")
"""Where the order of two statements is what a power cut between them leaves."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    """From the project's root."""
    number: int
    """Of all changes of the file."""
    line: int
    first: int
    last: int
    function: bool
    text: str
    """Of its line; with ``what`` it names the mutant whatever its line's number."""
    what: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by."""
        return self.file, self.text, self.what

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.file}:{self.line}: {self.text}  [{self.what}]"

    def rank(self, seed: int) -> bytes:
        """Its place in the draw of ``seed``: an edit elsewhere does not change who is drawn."""
        return hashlib.sha256("\0".join((str(seed), *self.key)).encode()).digest()


def ordered(file: str) -> bool:
    """Whether the order of neighbouring statements is changed in ``file`` too."""
    return file.startswith(_ORDERED)


def all_mutants(patterns: tuple[str, ...] = TARGETS) -> Iterator[Mutant]:
    """In order of file and line."""
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
        file, source = str(path.relative_to(ROOT)), path.read_text("utf-8")
        lines, seen = source.splitlines(), Counter[tuple[str, str]]()
        for number, m in enumerate(mutations(ast.parse(source), ordered=ordered(file))):
            text = lines[m.line - 1].strip()
            seen[text, m.what] += 1
            what = m.what if seen[text, m.what] == 1 else f"{m.what} #{seen[text, m.what]}"
            yield Mutant(file, number, m.line, m.first, m.last, m.function, text, what)
