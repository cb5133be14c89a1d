"""Slices of the loop that a module waits for."""

from types import ModuleType

import pytest

from lmj_operator.backend import rounds


class CountedTurns:
    """How many ``module`` has had, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.had = 0
        self.long = 0
        """Of them for what takes long."""
        monkeypatch.setattr(module, "turn", self._turn)

    async def _turn(self, *, long: bool = False) -> None:
        self.had, self.long = self.had + 1, self.long + long
        await rounds.turn(long=long)
