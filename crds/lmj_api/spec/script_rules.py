"""The rules of :mod:`lmj_api.spec.scripted` as CEL, for an API server."""

from typing import Final

from lmj_api.base import Message
from lmj_api.fields import field_type
from lmj_api.spec.job import JobSpec
from lmj_api.spec.pipeline import Strategy
from lmj_api.spec.scripted import FIELDS, NOT_SAID, ONE_STAGE, PARTS, SHARES_ITSELF

IS_SCRIPT: Final = f"(self.strategy == '{Strategy.COMMAND}')"


def rules_of_scripts() -> list[tuple[str, str]]:
    """What jobs of a script have, and what no other has."""
    other = f"self.strategy != '{Strategy.COMMAND}'"
    alone = [
        (f"{part}.{kind.model_fields[field].alias}", kind, field, why)
        for part, (kind, fields) in FIELDS.items()
        for field, why in fields.items()
    ]
    return [
        (f"{IS_SCRIPT} == has(self.command)", "command is the script of strategy Command: both are given, or neither"),
        *(
            (
                f"{IS_SCRIPT} ? !has(self.{name}) : has(self.command) || has(self.{name})",
                f"{name} is required, but for strategy Command, whose script has its own",
            )
            for name in NOT_SAID
        ),
        (f"{other} || self.dataParallel.shards == 1", f"dataParallel.shards: with strategy Command {SHARES_ITSELF}"),
        (
            f"{other} || (self.pipeline.stages in [1, 2] && self.pipeline.microBatches == {ONE_STAGE.micro_batches}"
            " && self.pipeline.firstInHalves && !has(self.pipeline.layers))",
            f"pipeline: with strategy Command {PARTS['pipeline'][1]}",
        ),
        *(
            (f"{other} || ({_equals(name, JobSpec, name)})", f"{name}: with strategy Command {PARTS[name][1]}")
            for name in ("training", "checkpoint")
        ),
        *(
            (f"{other} || {_equals(path, kind, field)}", f"{path}: with strategy Command {why}")
            for path, kind, field, why in alone
        ),
    ]


def _equals(path: str, kind: type[Message], field: str) -> str:
    """That the ``field`` of ``kind``, which is at ``path`` in the spec, has its default."""
    info = kind.model_fields[field]
    match info.default:
        case None:
            return f"!has(self.{path})"
        case Message() as part:
            inside = type(part)
            return " && ".join(_equals(f"{path}.{each.alias}", inside, name) for name, each in inside.model_fields.items())
        case list():
            return f"size(self.{path}) == 0"
        case bool() as on:
            return f"{'' if on else '!'}self.{path}"
        case str() as text:
            return f"self.{path} == '{text}'"
        case number:
            there = f"has(self.{path}) && " if field_type(info.annotation).nullable else ""
            return f"{there}self.{path} == {number}"
