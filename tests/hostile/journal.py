"""What an operator's log (``--log-format json``) says that somebody has to answer for."""

import json
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[str, str]
"""Namespace and name of a job."""
_NOBODY: Key = ("", "")


@dataclass
class Journal:
    """Read on and on, as the log grows."""

    file: Path
    troubles: dict[Key, str] = field(default_factory=dict)
    """The first error of each job, with its traceback; under no name what is of none."""
    _begin: int = 0

    def read(self) -> None:
        """Take what is new; a line that is being written is left for the next time."""
        with self.file.open("rb") as log:
            log.seek(self._begin)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._begin += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._take(line)

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            # Not by the log: the interpreter's own words on an error that nothing caught.
            if "Traceback" in line or "Error" in line:
                self.troubles.setdefault(_NOBODY, line)
            return
        if told["level"] in ("error", "critical") or "error" in told:
            key = (told.get("namespace", ""), told.get("job", ""))
            self.troubles.setdefault(key, f"{told['message']}\n{told.get('error', '')}")
