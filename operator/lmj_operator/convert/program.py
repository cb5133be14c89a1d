"""What a container runs, as ``command`` has it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from lmj_operator.convert.launcher import Launch, parse
from lmj_operator.convert.notes import Notes
from lmj_operator.convert.shell import Command, Word, commands

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ash"})
_REFERENCE: Final = re.compile(r"\$(\$\(|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
_LAUNCHERS: Final = re.compile(r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate[ -]launch)\b")


@dataclass(frozen=True)
class Program:
    """A program for each process of a job."""

    args: tuple[str, ...]
    working_dir: str | None = None
    """Where a shell's line goes first; relative: to the container's own."""
    variables: dict[str, str] = field(default_factory=dict)
    launch: Launch | None = None
    """The launcher that was taken off; None: there was none, or it could not be."""


def program(words: Sequence[str], variables: Mapping[str, str], notes: Notes, where: str) -> Program:
    """What ``words``, command and arguments of a container with these ``variables``, runs in each process."""
    words = [_expanded(word, variables) for word in words]
    line = _line(words)
    if line is not None:
        return _of_shell(words, line, notes, where)
    launch = parse(words)
    if launch is None:
        _tell_kept(words, notes, where)
        return Program(tuple(words))
    for word in launch.args:
        if _REFERENCE.search(word):
            notes.check(where, f"{word!r} names a variable whose value is not in the file: nobody puts it in, so write the value")
    return Program(launch.args, None, dict(launch.variables), launch)


def _line(words: Sequence[str]) -> str | None:
    """The line that a shell is given with ``-c``, and nothing else; None: it is no shell, or it gets more."""
    if not words or PurePosixPath(words[0]).name not in _SHELLS:
        return None
    at = next((index for index, word in enumerate(words) if index and re.fullmatch(r"-[A-Za-z]*c", word)), None)
    return words[at + 1] if at is not None and at + 2 == len(words) else None


def _of_shell(words: Sequence[str], line: str, notes: Notes, where: str) -> Program:
    found = commands(line)
    if not found:
        _tell_kept(words, notes, where)
        return Program(tuple(words))
    before, (assigned, rest) = found[:-1], _assigned(found[-1])
    launch = parse([word.value for word in rest])
    if launch is None:
        _tell_kept(words, notes, where)
        return Program(tuple(words))
    script = rest[len(rest) - launch.rest - 1 :]
    folder, exported, other = _prepared(before)
    if not other and all(word.is_plain for word in (*assigned, *script)):
        variables = exported | dict(word.assigned for word in assigned if word.assigned) | launch.variables
        return Program(launch.args, folder, variables, launch)
    if launch.launcher is None:
        notes.changed(
            where, "the shell does more than to start the script: its line is kept as a program, which each process runs"
        )
        return Program(tuple(words), launch=launch)
    notes.changed(
        where,
        f"the shell does more than to start the script: its line is kept as a program with {launch.launcher} taken out, and each"
        " process runs all of it; put what is needed once into the image, or into an init container",
    )
    start = () if launch.args[0] not in ("-m", "python") and not launch.args[0].endswith(".py") else ("python",)
    module = ("-m",) if launch.args[0] == "-m" else ()
    last = " ".join((*(word.raw for word in assigned), "exec", *start, *module, *(word.raw for word in script)))
    text = "".join(_written(command) for command in before) + last
    return Program((*words[:-1], text), None, dict(launch.variables), launch)


def _assigned(command: Command) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """The assignments that a command begins with, and the rest of it without ``exec``."""
    words = command.words
    count = next((index for index, word in enumerate(words) if word.assigned is None), len(words))
    rest = words[count:]
    return words[:count], rest[1:] if rest and rest[0].value == "exec" else rest


def _prepared(before: Sequence[Command]) -> tuple[str | None, dict[str, str], bool]:
    """Folder and variables that the commands before the last one set, and whether they do anything else."""
    folder: str | None = None
    variables: dict[str, str] = {}
    for command in before:
        name, *rest = command.words
        if not all(word.is_plain for word in rest):
            return None, {}, True
        if name.value == "cd" and len(rest) == 1:
            folder = str(PurePosixPath(folder or "") / rest[0].value)
        elif name.value == "export" and rest and all(word.assigned for word in rest):
            variables.update(word.assigned for word in rest if word.assigned)
        elif name.value != "set":
            return None, {}, True
    return folder, variables, False


def _written(command: Command) -> str:
    end = {"&&": " && ", ";": "; "}.get(command.end, command.end)
    return " ".join(word.raw for word in command.words) + end


def _tell_kept(words: Sequence[str], notes: Notes, where: str) -> None:
    starts = _LAUNCHERS.search(" ".join(words))
    if starts is not None:
        notes.fill_in(
            where,
            f"the line is too much to be read, and is kept as a program that each process runs; it has {starts[0]} in it: write python"
            " instead, because the processes are started already",
        )
    else:
        notes.changed(where, f"{words[0]!r} starts no Python script: it is kept as a program, which each process runs")


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """As the kubelet would have it."""
    return _REFERENCE.sub(lambda match: "$(" if match[2] is None else variables.get(match[2], match[0]), word)
