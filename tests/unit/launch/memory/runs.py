"""Scripts under a real ``torchrun``, killed in their middle, and started again from their memory by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lmj_trainer.launch.memory.folder import Snapshot, snapshots

DEADLINE = 200.0
KILL = '''
KILLED = ""

def kill_at(step):
    """The process that is to die at ``step`` does."""
    import os, signal
    if (os.environ.get("KILL") or KILLED) == f"{os.environ.get('RANK', '0')}:{step}" and os.environ["LMJ_VIEW"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
'''


@dataclass
class Runs:
    """Runs of one script in one folder. Each run has an output of its own unless it goes on."""

    folder: Path
    script: str
    processes: int = 1
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "script.py").write_text(KILL + self.script)

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    def run(self, *, out: str, every: int | None = None, view: int = 1, kill: str = "", restore: Path | None = None) -> int:
        """The exit code. ``kill``: ``RANK:STEP``."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LMJ_")}
        environment |= {"OMP_NUM_THREADS": "1", "OUT": str(self.folder / out), "KILL": kill, **self.environment}
        environment |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "LMJ_VIEW": str(view)}
        if every is not None:
            environment |= {"LMJ_MEMORY_DIR": str(self.memory), "LMJ_MEMORY_EVERY": str(every)}
        if restore is not None:
            environment["LMJ_MEMORY_RESTORE"] = str(restore)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        command = [*torchrun, str(Path(__file__).with_name("with_memory.py")), str(self.folder / "script.py")]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE)
        self.said = done.stdout + done.stderr
        return done.returncode

    def newest(self) -> Snapshot:
        return snapshots(self.memory)[0]
