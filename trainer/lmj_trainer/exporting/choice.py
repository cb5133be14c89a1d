"""Which checkpoint's model is exported: one that is whole, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lmj_api.spec import JobSpec
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.checkpoint.scan import Found, survey, verify
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.errors import UserError
from lmj_trainer.store.port import Ref
from lmj_trainer.wording import listed


class GoneError(Exception):
    """The checkpoint was there and is not any more: the job, which trains, has newer ones. Its text is the checkpoint's name."""


@dataclass(frozen=True)
class Choice:
    """A checkpoint that was verified."""

    folder: Ref
    step: int
    best: bool
    """Whether it is the best one of those that are there."""
    passed: tuple[str, ...]
    """Newer ones that are damaged, and how."""


def require_any(root: Ref, spec: JobSpec, step: int | None) -> None:
    """Raise UserError when there is certainly none to choose: before libraries are loaded, which takes seconds. Raises OSError."""
    found = candidates(survey(root, state_digest(spec), spec.training, digests=False), root, step)
    if all(each.info.problem is not None for each in found):
        with suppress(GoneError):  # it was completed meanwhile
            choose(root, spec, step)


def choose(root: Ref, spec: JobSpec, step: int | None) -> Choice:
    """The newest good checkpoint of the job in ``root``, or that of ``step``. Raises GoneError, OSError, and UserError: there is none."""
    digest = state_digest(spec)
    known = survey(root, digest, spec.training, digests=False)
    passed: list[str] = []
    for each in candidates(known, root, step):
        folder, problem = root / each.info.name, each.info.problem
        if problem is None:
            found = verify(folder, digest, spec.training)
            if found is not None and found.info.problem is None:
                return Choice(folder, each.info.step, each.info.best, tuple(passed))
            if found is None or is_gone(folder):
                raise GoneError(folder.name)
            problem = found.info.problem
        elif is_gone(folder) and step is None:
            continue  # half-written: by the job, now, or by one that died
        passed.append(f"checkpoint {each.info.name} cannot be used: {problem}")
    raise UserError(f"{passed[0]}{_others(known, step)}" if passed else f"{root} has no checkpoint yet: try again later")


def candidates(known: Sequence[Found], root: Ref, step: int | None) -> Sequence[Found]:
    """Those of ``known`` that may be meant, newest first. Raises UserError when there is none."""
    if not known:
        raise UserError(f"{root} has no checkpoint yet: try again later")
    found = [each for each in known if step in (None, each.info.step)]
    if not found:
        raise UserError(f"{root} has no checkpoint of step {step}{_others(known, step)}")
    return found


def is_gone(folder: Ref) -> bool:
    """Whether there is no checkpoint in ``folder``. Raises OSError."""
    return not (folder / MANIFEST).exists()


def _others(known: Sequence[Found], step: int | None) -> str:
    """What else there is to choose."""
    steps = dict.fromkeys(each.info.step for each in known if each.info.problem is None and each.info.step != step)
    if step is None or not steps:
        return ""
    return f"; there {'are those of steps' if len(steps) > 1 else 'is that of step'} {listed([str(s) for s in steps])}"
