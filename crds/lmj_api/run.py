"""Which run of a job: a job that is deleted and made again has the same name, and its views are counted from 1 again."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import Time

UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_NIL = "00000000-0000-0000-0000-000000000000"


class Run(Message):
    """The identity of one run. What outlives a job (a file's name, a manifest, a message on its way) says whose it is by this and the view."""

    id: Annotated[str, Field(pattern=UUID)] = _NIL
    """The object's uid on a cluster; of ``lmj run``, one made when it started over. Nil: nobody gave one."""
    begun: Time = 0.0
    """When it was made, in seconds since the epoch, by one clock: the API server's, or that of the machine that runs it. It orders the runs
    of one output folder, and nothing else. 0: not known, so before all others."""

    @property
    def known(self) -> bool:
        """Whether somebody gave it."""
        return self.id != _NIL

    @property
    def short(self) -> str:
        """The id's first 8 hex digits: for names, within one folder."""
        return self.id[:8]

    def precedes(self, other: "Run") -> bool:
        """Whether ``other`` is a later run. An API server's clock counts seconds: of two runs of the same one neither is."""
        return self.id != other.id and self.begun < other.begun
