"""Which tests go through which line: recorded once, and kept until the code or the file of tests changes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutants import judge
from mutants.mutant import ROOT, Mutant
from mutants.report import progress

CACHE = ROOT / ".mutants"


@dataclass
class Map:
    """Which tests go through which line, and how long each takes."""

    tests: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, found: dict[str, Any]) -> None:
        """What one file's tests do."""
        for test, places in found["lines"].items():
            for file, line in places:
                self.tests[file, line].update([test] if test else found["seconds"])
        for test, seconds in found["seconds"].items():
            self.seconds[test] = seconds + found["shared"]

    def through(self, mutant: Mutant, functions: dict[str, set[str]]) -> set[str]:
        """Tests that run the changed code; of what runs at import: all that run anything of the file."""
        if not mutant.function:
            return functions[mutant.file]
        return set().union(*(self.tests.get((mutant.file, line), set()) for line in range(mutant.first, mutant.last + 1)))


def recorded(session: pytest.Session, scratch: Path, targets: set[str], jobs: int) -> Map:
    """From the cache where neither the code nor the file of tests has changed. Raises pytest's Failed: tests fail without any mutant."""
    code = hashlib.sha256(b"".join(digest(ROOT / file) for file in sorted(targets)))
    for path in sorted(ROOT.glob("tests/**/*.py")):
        if not path.name.startswith("test_"):
            code.update(digest(path))
    items: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in session.items:
        items[item.nodeid.split("::")[0]].append(item)
    places = {
        file: CACHE / hashlib.sha256(code.digest() + digest(ROOT / file) + file.encode()).hexdigest()[:32] for file in items
    }
    CACHE.mkdir(exist_ok=True)
    found, failed = Map(), list[str]()
    of: dict[int, str] = {}

    def start(file: str, number: int) -> Callable[[], judge.Child]:
        make = judge.record(session, items[file], targets, scratch / f"record-{number}")

        def run() -> judge.Child:
            child = make()
            of[child.pid] = file
            return child

        return run

    def ended(child: judge.Child) -> None:
        file = of[child.pid]
        answer: dict[str, Any] = json.loads(child.lines[-1]) if child.lines else {"failed": ["no answer"], "code": child.code}
        if answer["failed"] or answer["code"]:
            failed.append(f"{file}: {answer['failed']}\n{child.log.read_text()[-3000:]}")
            return
        places[file].write_text(json.dumps(answer))
        found.add(answer)
        progress(f"{file}: {len(answer['seconds'])} tests, {child.cpu:.1f} s of processor")

    missing = [file for file in items if not places[file].exists()]
    for file in items.keys() - set(missing):
        found.add(json.loads(places[file].read_text()))
    judge.run_all([start(file, n) for n, file in enumerate(missing)], jobs, lambda child: None, ended)
    if failed:
        print("without any mutant these fail:", *failed, sep="\n", file=sys.stderr)
        raise session.Failed("tests fail without any mutant")
    return found


def digest(path: Path) -> bytes:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).digest()
