"""Volumes of a job on a cluster."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from lmj_api.base import Message


class AccessMode(StrEnum):
    """From how many nodes a volume can be used at the same time."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class Volume(Message):
    """A volume: ``claimName`` of a claim that is there, or ``size`` of one that the operator makes."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """An existing PersistentVolumeClaim in the job's namespace."""
    size: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")] | None = None
    """Size of a claim that the operator makes: ``10Gi``. A claim that an earlier job of this name left is used again."""
    storage_class_name: Annotated[str, Field(min_length=1)] | None = None
    """Storage class of the claim that is made. Unset: the cluster's default."""
    access_mode: AccessMode | None = None
    """Access mode of the claim that is made. Unset: ``ReadWriteMany`` when there are several ranks, or may be (``dataParallel.maxReplicas``), else
    ``ReadWriteOnce``."""
    delete_with_job: bool = False
    """Delete the claim that was made, with all that is in it, when the job is deleted."""

    def mode(self, most_ranks: int) -> AccessMode | None:
        """Access mode of the claim that is made for a job of up to ``most_ranks`` ranks; None: it is an existing claim's, and not known."""
        if self.size is None:
            return None
        return self.access_mode or (AccessMode.READ_WRITE_MANY if most_ranks > 1 else AccessMode.READ_WRITE_ONCE)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.claim_name is None) == (self.size is None):
            raise ValueError("set exactly one of claimName (an existing claim) and size (a claim that is made)")
        if self.claim_name is not None and (self.storage_class_name or self.access_mode or self.delete_with_job):
            raise ValueError("storageClassName, accessMode and deleteWithJob belong to size, not to the existing claim claimName")
        return self


class Storage(Message):
    """Volumes of the job's pods. One machine needs none: paths are its own."""

    output: Volume | None = None
    """Mounted at ``/output``; relative ``output.path`` and ``checkpoint.path`` lie there. All ranks share it."""
    data: Volume | None = None
    """Mounted at ``/data``, read-only; relative paths of dataset and model lie there. Unset: they lie in the trainer image's examples."""
