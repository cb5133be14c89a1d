"""``python -m lmj_trainer checkpoints PLACE``: every checkpoint in a folder, each fully verified."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from lmj_trainer.checkpoint.copying import copy
from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.scan import Found, survey
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import open_place

HEADER = ("STEP", "EPOCH", "TIME", "SIZE", "FILES", "BEST", "STATE")


def main(argv: Sequence[str]) -> int:
    """Print the checkpoints in a folder, and copy them where that is asked for. Raises UserError when there is no such folder."""
    parser = Parser(prog="lmj checkpoints", description="List and verify the checkpoints in a folder; copy them to another.")
    parser.add_argument(
        "folder", metavar="PLACE", help="a checkpoint folder, or an output folder that has one: a path, or s3://BUCKET/FOLDER"
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="form of the output (default: table)")
    parser.add_argument("--copy-to", metavar="PLACE", help="copy those that are verified to this folder, if it lacks them")
    arguments: argparse.Namespace = parser.parse_args(argv)
    folder = locate(arguments.folder)
    found = survey(folder, None, everything=True)
    sys.stdout.write((as_json(found) if arguments.output == "json" else as_table(found)) + "\n")
    if arguments.copy_to is not None:
        target = open_place(arguments.copy_to)
        try:
            copied = copy(found, folder, target, lambda text: print(text, file=sys.stderr, flush=True))
        except OSError as error:
            raise UserError(f"cannot copy to {target}: {error}") from error
        print(f"{len(copied)} copied to {target}", file=sys.stderr)
    return 0


def locate(place: str) -> Ref:
    """The folder at ``place``, or ``checkpoints`` in it when it is a job's output folder. Raises UserError when it cannot be listed."""
    folder = open_place(place)
    try:
        names = folder.folders()
        if not names and not folder.is_folder():
            raise FileNotFoundError
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no such folder; give a job's output.path, or its checkpoint folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is a file; give the folder of the checkpoints") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}") from error
    if not any(is_checkpoint(name) for name in names) and "checkpoints" in names:
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
