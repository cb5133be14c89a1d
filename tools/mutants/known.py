"""Mutants that no test can kill, each with the reason: a list that people review."""

from __future__ import annotations

import tomllib
from pathlib import Path

from mutants.mutant import Mutant

LIST = Path(__file__).with_name("equivalent.toml")


class StaleError(Exception):
    """An entry names no mutant."""


def equivalent(mutants: list[Mutant], path: Path = LIST) -> dict[tuple[str, str, str], str]:
    """Why, by :attr:`Mutant.key`. Raises StaleError, ValueError: an entry without a reason, or twice."""
    there = {mutant.key for mutant in mutants}
    known: dict[tuple[str, str, str], str] = {}
    for entry in tomllib.loads(path.read_text("utf-8")).get("equivalent", []):
        for what in entry["what"] if isinstance(entry["what"], list) else [entry["what"]]:
            key = entry["file"], entry["line"], what
            if key not in there:
                raise StaleError(f"{path.name}: there is no mutant {' | '.join(key)}: take the entry out, or write it again")
            if key in known or not entry["why"].strip():
                raise ValueError(f"{path.name}: {' | '.join(key)} stands there twice, or without a reason")
            known[key] = entry["why"].strip()
    return known
