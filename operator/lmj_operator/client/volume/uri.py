"""``pvc://CLAIM/PATH``: a place on a volume."""

import re
from dataclasses import dataclass

from lmj_operator.client.volume.far.tree import TreeError, names_of, shown

SCHEME = "pvc://"
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class WrongUri(ValueError):  # noqa: N818 - it names what is the matter
    """It names no place on a volume; the text says why, in one line."""


@dataclass(frozen=True)
class Place:
    """``path`` in the root of the volume of ``claim``; empty: the root itself."""

    claim: str
    path: str = ""
    folder: bool = False
    """It was written with a slash at its end, or is the root: a folder is meant, whether it is there or not."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.claim}/{shown(self.path)}"

    def below(self, name: str) -> "Place":
        """What is called ``name`` in it."""
        return Place(self.claim, f"{self.path}/{name}" if self.path else name)


def parse(text: str) -> Place:
    """The place that ``text`` names. Raises WrongUri."""
    if not text.startswith(SCHEME):
        raise WrongUri(f"{shown(text)}: not a place on a volume: write pvc://CLAIM/PATH, as in pvc://reviews/data")
    claim, _, path = text.removeprefix(SCHEME).partition("/")
    if not _CLAIM.fullmatch(claim):
        raise WrongUri(f"{shown(text)}: {shown(claim) or 'nothing'} is no name of a claim: write pvc://CLAIM/PATH")
    try:
        names_of(inner := path.removesuffix("/"))
    except TreeError as error:
        raise WrongUri(f"{shown(text)}: {error}") from error
    return Place(claim, inner, folder=not inner or path.endswith("/"))
