"""Fields of a job that say nothing on one machine."""

from lmj_api.spec.job import JobSpec

NO_EFFECT = ("network", "placement", "template", "ttl_seconds_after_finished")
"""Fields of the spec that only a cluster acts on. Not storage: what it asks for, one machine has anyway."""


def without_effect(spec: JobSpec) -> str | None:
    """One line that names the fields that were set and have no effect here; None when there are none."""
    fields = type(spec).model_fields
    names = [
        fields[name].alias or name for name in NO_EFFECT if name in spec.model_fields_set and getattr(spec, name) is not None
    ]
    return f"no effect on one machine: {', '.join(names)}" if names else None
