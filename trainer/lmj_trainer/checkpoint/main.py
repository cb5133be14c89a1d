"""``python -m lmj_trainer checkpoints DIR``: every checkpoint in a folder, each fully verified."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.scan import Found, survey
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.store.posix import folder as folder_at

HEADER = ("STEP", "EPOCH", "TIME", "SIZE", "FILES", "BEST", "STATE")


def main(argv: Sequence[str]) -> int:
    """Print the checkpoints in a folder. Raises UserError when there is no such folder."""
    parser = Parser(prog="lmj checkpoints", description="List and verify the checkpoints in a folder.")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a checkpoint folder, or an output folder that has one")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="form of the output (default: table)")
    arguments: argparse.Namespace = parser.parse_args(argv)
    found = survey(folder_at(locate(arguments.folder)), None, everything=True)
    sys.stdout.write((as_json(found) if arguments.output == "json" else as_table(found)) + "\n")
    return 0


def locate(folder: Path) -> Path:
    """``folder``, or ``checkpoints`` in it when it is a job's output folder. Raises UserError when it cannot be listed."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no such folder; give a job's output.path, or its checkpoint folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is a file; give the folder of the checkpoints") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    if not any(is_checkpoint(name) for name in names) and (folder / "checkpoints").is_dir():
        return folder / "checkpoints"
    return folder


def as_json(found: Sequence[Found]) -> str:
    """A JSON list, newest first: :class:`CheckpointInfo` with what the manifest adds (null where it could not be read)."""
    values = []
    for each in found:
        value = each.info.model_dump(mode="json", by_alias=True)
        manifest = each.manifest.model_dump(mode="json", by_alias=True) if each.manifest else {}
        value |= {key: manifest.get(key) for key in ("job", "view", "epoch", "seconds", "accuracy", "stateDigest", "files")}
        values.append(value)
    return json.dumps(values, indent=2)


def as_table(found: Sequence[Found]) -> str:
    """A table, newest first; one line for a folder without checkpoints."""
    if not found:
        return "no checkpoints"
    rows = [HEADER, *(_row(each) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows)


def _row(found: Found) -> tuple[str, ...]:
    info, manifest = found.info, found.manifest
    return (
        str(info.step),
        f"{manifest.epoch:.2f}" if manifest else "-",
        datetime.fromtimestamp(info.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if info.time else "-",
        _size(info.size) if manifest else "-",
        str(len(manifest.files)) if manifest else "-",
        "best" if info.best else "",
        "verified" if info.problem is None else info.problem,
    )


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
