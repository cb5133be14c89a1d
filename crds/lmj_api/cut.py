"""How the layers are cut into stages: a pod is of one cut for as long as it lives, a job may change its own while it trains."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import FIRST

MOST_STAGES = 64


class Cut(Message):
    """One way to cut the layers."""

    stages: Annotated[int, Field(ge=1, le=MOST_STAGES)]
    """Number of stages."""
    layers: Annotated[list[Annotated[int, Field(ge=1)]] | None, FIRST, Field(max_length=MOST_STAGES)] = None
    """Encoder layers of each stage; None: balanced by cost."""

    def __str__(self) -> str:
        stages = f"{self.stages} stage{'s' if self.stages != 1 else ''}"
        return stages if self.layers is None else f"{stages} of {', '.join(map(str, self.layers))} layers"
