"""Fields of a job that say nothing on one machine."""

import sys
from collections.abc import Iterator

from lmj_api.spec.job import JobSpec
from lmj_api.spec.network import Encryption

NO_EFFECT = ("placement", "template", "ttl_seconds_after_finished")
"""Fields of the spec that only a cluster acts on. Not storage: what it asks for, one machine has anyway."""


def without_effect(spec: JobSpec) -> str | None:
    """One line that names the fields that were set and have no effect here; None when there are none."""
    names = list(_names(spec))
    return f"no effect on one machine: {', '.join(names)}" if names else None


def _names(spec: JobSpec) -> Iterator[str]:
    if "policy" in spec.network.model_fields_set:
        yield "network.policy"
    if spec.network.encryption is Encryption.REQUIRED and sys.platform != "linux":
        yield "network.encryption (Linux alone)"
    fields = type(spec).model_fields
    for name in NO_EFFECT:
        if name in spec.model_fields_set and getattr(spec, name) is not None:
            yield fields[name].alias or name
