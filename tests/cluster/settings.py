"""What is fixed when a cluster is first brought up; the file is what says that there is one."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.process import started_at

FILE = "cluster.json"


@dataclass(frozen=True)
class Settings:
    """``block`` is the network's; ``owner`` pid and start time of the process that the cluster must not outlive, None when there is none."""

    block: int
    nodes: int
    owner: tuple[int, int] | None

    @property
    def abandoned(self) -> bool:
        """Whether the owner is gone."""
        return self.owner is not None and started_at(self.owner[0]) != self.owner[1]

    def save(self, folder: Path) -> None:
        """Write them, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{FILE}.new"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(folder / FILE)


def this_process() -> tuple[int, int]:
    """Pid and start time, as an owner."""
    return os.getpid(), started_at(os.getpid()) or 0


def load_settings(folder: Path) -> Settings | None:
    """Of the cluster in ``folder``; None when there is none. Raises ClusterError for a file that is not one of ours."""
    try:
        saved = json.loads((folder / FILE).read_text())
        owner = saved["owner"]
        return Settings(saved["block"], saved["nodes"], (owner[0], owner[1]) if owner else None)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{folder / FILE} is damaged ({error!r}); remove the folder once nothing of it runs") from error
