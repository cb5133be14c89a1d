"""The hub that a trained model is pushed to."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.spec.secret import SecretKey


class HubContent(StrEnum):
    """What is pushed."""

    MODEL = "Model"
    ADAPTER = "Adapter"


class Hub(Message):
    """A repository on the Hugging Face hub. The model is pushed from rank 0's pod when it is saved, with a card; a push that fails fails no job."""

    repository: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$", min_length=1, max_length=193)
    ]
    """Its id, ``owner/name``; it is made when it is not there. Without an owner: the token's."""
    private: bool = True
    """Whether a repository that is made is private; one that is there stays as it is."""
    content: HubContent = HubContent.MODEL
    """The whole model, or the adapter alone (``model.lora``)."""
    token: SecretKey | None = None
    """A token that may write there, on a cluster. ``lmj run`` uses the environment's ``HF_TOKEN``, or what ``hf auth login`` left."""
