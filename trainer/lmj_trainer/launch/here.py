"""What a launcher has, whatever the view."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.launch.agent_line import AgentLine
from lmj_trainer.launch.memory.transfer import Fetcher
from lmj_trainer.launch.processes import Starter


@dataclass(frozen=True)
class Here:
    """Of one launcher."""

    job: LiveMigrationJob
    rank: int
    agent: AgentLine
    starter: Starter
    changed: asyncio.Event
    """Is set when there is news of the agent or of a process."""
    variables: dict[str, str]
    """Its own: those of the script, too."""
    cores: Sequence[int]
    """Processors that it may run on."""

    fetcher: Fetcher | None = None
    """Of snapshots in memory; None: there are to be none."""

    @property
    def memory(self) -> Path | None:
        """The folder for snapshots."""
        return None if self.fetcher is None else self.fetcher.folder
