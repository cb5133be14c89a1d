"""Logs, as text or one JSON object a line."""

import json
import logging
import sys
import time
from enum import StrEnum


class LogFormat(StrEnum):
    """How the operator logs."""

    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message; of a job also its namespace and name."""

    def format(self, record: logging.LogRecord) -> str:
        """As the base says."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        job = getattr(record, "job", None)
        if job is not None:
            line |= {"namespace": job[0], "job": job[1]}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line for people, with the job before the message."""

    def format(self, record: logging.LogRecord) -> str:
        """As the base says."""
        job = getattr(record, "job", None)
        text = super().format(record)
        return text.replace(" - ", f" {job[0]}/{job[1]}: ", 1) if job is not None else text.replace(" - ", " ", 1)


def configure(style: LogFormat, level: str) -> None:
    """Log to stderr. Kopf says only what went wrong: each event that it hears is no news."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter("%(asctime)s %(levelname)s - %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("kopf", "aiohttp.access", "kubernetes"):
        logging.getLogger(name).setLevel(logging.WARNING)
