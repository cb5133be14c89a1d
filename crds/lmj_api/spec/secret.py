"""A reference to what must not stand in a spec."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message

SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""The name of a Secret."""


class SecretKey(Message):
    """A value in a Secret of the job's namespace; only pods that need it get it. ``lmj run`` takes it from the environment instead."""

    name: SecretName
    """Name of the Secret."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
    """The key in it."""
