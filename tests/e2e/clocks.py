"""Wall clocks that jump: a library that is preloaded, and a file for each clock."""

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


@dataclass(frozen=True)
class Clocks:
    """The clocks of ``folder``, by name; processes may see the folder at another place."""

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "clock.so"

    def build(self) -> None:
        """Compile what is preloaded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self.library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=120)

    def set(self, name: str, seconds: int = 0) -> None:
        """Have the clock ``name`` be so far ahead of this machine's from now on."""
        file = self.folder / name
        if not file.exists():
            file.write_bytes(struct.pack("=q", 0))
        with file.open("r+b", buffering=0) as opened:  # processes have mapped this very file
            opened.write(struct.pack("=q", seconds))

    def env(self, name: str, folder: Path | None = None) -> dict[str, str]:
        """The environment of a process with this clock. ``folder``: where it sees the folder."""
        seen = folder or self.folder
        return {"LD_PRELOAD": str(seen / self.library.name), "LMJ_CLOCK": str(seen / name)}
