"""When checkpoints are taken and how many stay."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.spec.secret import SecretName


class Checkpoint(Message):
    """Checkpoints: written beside training, resumable at the exact step and into another number of stages."""

    path: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the checkpoints; a relative path as in ``output.path``, or a place in object storage: ``s3://BUCKET/FOLDER``,
    ``azblob://CONTAINER/FOLDER``, ``gs://BUCKET/FOLDER``, or in Azure Files: ``azfile://SHARE/FOLDER``. Unset: ``checkpoints`` in
    ``output.path``."""
    secret_name: SecretName | None = None
    """A Secret of the job's namespace with what leads to object storage or Azure Files, that of ``dataset``, ``model`` and ``output`` too, under
    the names of environment variables (``AWS_ACCESS_KEY_ID``, ``AZURE_STORAGE_ACCOUNT_KEY``, ``GOOGLE_SERVICE_ACCOUNT_KEY``). Pods that
    run use what is renewed there. Unset: the pods' environment has it, or an identity of their own. ``lmj run`` uses its own environment."""
    every_steps: Annotated[int, Field(ge=1)] | None = 100
    """A checkpoint after every so many steps. Null: not by steps."""
    every_seconds: Annotated[int, Field(ge=1)] | None = None
    """A checkpoint at the first step boundary after so many seconds. Null: not by time."""
    retry_seconds: Annotated[float, Field(ge=0)] = 1800.0
    """A checkpoint that is waited for (the last, and one before leaving) and cannot be written is tried again for so long; then the job fails.
    Training is done by then and its result is in memory alone: if room is made on the disk in time, nothing is lost."""
    keep: Annotated[int, Field(ge=1)] = 3
    """Newest checkpoints to keep; the best one by validation stays besides."""
    keep_every: Annotated[int, Field(ge=1)] | None = None
    """Keep milestones too: of every so many steps the first checkpoint. Null: none."""
    bandwidth_mbps: Annotated[int, Field(ge=1)] | None = None
    """Most megabits a second that a rank writes of a checkpoint beside training. One that is waited for, before a rank leaves or at the end, has
    no limit. Null: none."""
