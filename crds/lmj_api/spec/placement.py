"""Which nodes ranks run on."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message


class StagePlacement(Message):
    """Where one stage runs."""

    stage: Annotated[int, Field(ge=0)]
    """The stage."""
    node_selector: dict[str, str]
    """Labels that its node must have."""


class Placement(Message):
    """Which nodes ranks run on. One machine has one node: nothing to choose there."""

    spread: bool = True
    """Prefer a node of its own for each rank. With replicas (``dataParallel.maxReplicas``): one for each replica, and other zones for others, so
    that a node or a zone that is lost takes few of them."""
    node_selector: dict[str, str] = {}
    """Labels that every rank's node must have."""
    stages: list[StagePlacement] = []
    """Labels for single stages, on top."""
