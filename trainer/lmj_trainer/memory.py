"""The memory that a rank needs for its state, and for sums of shards where replicas share a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import TYPE_CHECKING, Any

from lmj_api.base import Message
from lmj_api.shards import most_beside
from lmj_trainer.model.partition import partition

if TYPE_CHECKING:
    from lmj_api.spec import DataParallel, JobSpec
    from lmj_trainer.model.sizes import Sizes

GRADIENT_BYTES, STATE_BYTES = 4, 16
"""Of each trained parameter, in float32: its gradient; that, its weight and two moments."""
_MIB = 1 << 20
_UNITS = {"": 1, **{"kMGTPE"[i]: 1000 ** (i + 1) for i in range(6)}, **{f"{'KMGTPE'[i]}i": 1024 ** (i + 1) for i in range(6)}}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kMGTPE]|[KMGTPE]i)?")
_FIELD = "spec.template.spec.containers[trainer].resources"


class Beside(Message):
    """What a rank needs beside its state, where replicas share a step."""

    bytes: float
    """For each trained parameter of its stage, at most."""
    replicas: int
    """The number of replicas in the view with which it is as much."""
    rank_bytes: int | None = None
    """Of the largest rank for its state and this, at most; None: how many of its parameters are trained is not known here."""

    @classmethod
    def of(cls, parts: DataParallel, trained: int | None) -> Beside | None:
        """That of a job with ``parts``, whose largest stage trains so many parameters; None: nothing."""
        if parts.shards == 1:
            return None
        gradients, replicas = most_beside(parts.shards, parts.min_replicas, parts.most)
        more = round(GRADIENT_BYTES * gradients, 1)
        whole = None if trained is None else ceil(trained * (STATE_BYTES + more))
        return cls(bytes=more, replicas=replicas, rank_bytes=whole)

    @property
    def lines(self) -> list[str]:
        """For people."""
        with_most = f"with {self.replicas} replica{'s' if self.replicas > 1 else ''}"
        each = (
            f"memory: {STATE_BYTES} bytes for each trained parameter of a stage, and at most {self.bytes:g} more for sums of"
            f" shards ({with_most})"
        )
        if self.rank_bytes is None:
            return [each]
        mebibytes = ceil(self.rank_bytes / _MIB)
        return [
            f"{each}: {mebibytes} MiB for a rank",
            f"on a cluster: {_FIELD}.requests.memory of {mebibytes}Mi, and what activations, data, and Python with torch take",
        ]

    def short(self, template: Mapping[str, Any] | None) -> list[str]:
        """What of the trainer's memory in ``template`` is less than the rank needs, a line each."""
        if (needed := self.rank_bytes) is None:
            return []
        return [
            f"{_FIELD}.{kind}.memory {given} is less than the {ceil(needed / _MIB)}Mi of a rank's state and sums of shards alone: raise it"
            for kind, given in _given(template).items()
            if (size := _bytes(given)) is not None and size < needed
        ]


def most_trained(spec: JobSpec, sizes: Sizes) -> int | None:
    """Trained parameters of the largest stage; None: adapters are trained alone."""
    if spec.model.lora is not None:
        return None
    return max(sizes.of(layers) for layers in partition(sizes.layers, spec.pipeline.stages, spec.pipeline.layers))


def _given(template: Mapping[str, Any] | None) -> dict[str, str]:
    """What ``template`` gives the trainer's container of memory, by kind. It may be anything: a cluster checks it."""
    containers = _at(template, "spec", "containers")
    for container in containers if isinstance(containers, list) else []:
        if _at(container, "name") == "trainer":
            found = {kind: _at(container, "resources", kind, "memory") for kind in ("requests", "limits")}
            return {kind: str(value) for kind, value in found.items() if isinstance(value, int | str)}
    return {}


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _bytes(quantity: str) -> Decimal | None:
    """Of a quantity as Kubernetes writes it; None: of another form."""
    match = _QUANTITY.fullmatch(quantity.strip())
    return None if match is None else Decimal(match[1]) * _UNITS[match[2] or ""]
