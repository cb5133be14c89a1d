"""The class in a user's file: loaded once, asked for what it must have, and its errors told with file and line.

It runs in workers and in the check of a job alone. Needs no torch; the file as a rule does.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lmj_api.nearest import did_you_mean
from lmj_api.spec.model import SCRIPT
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed, one_line

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec, LiveMigrationJob, Model

REQUIRED = {"model": 0, "collate": 1, "loss": 2}
"""Methods that a class has, with how many arguments each is called."""
OPTIONAL = {"forward": 3, "samples": 1, "metrics": 2, "summary": 1, "keep": 2, "evaluate": 1, "score": 1, "save": 2}
"""Methods that it may have."""
_MODULE = "lmj_own_"
"""How the file is called as a module: not by its own name, which may be that of another one."""


@dataclass(frozen=True, eq=False)
class Own:
    """An object of the user's class."""

    path: str
    """The file."""
    name: str
    """The class."""
    task: Any
    """The object."""

    def has(self, method: str) -> bool:
        """Whether the class has it."""
        return hasattr(self.task, method)

    def call(self, method: str, *arguments: Any) -> Any:
        """What ``method`` of the object returns. UserError: it raised an error."""
        with self.blamed(f"{self.name}.{method}", method):
            return getattr(self.task, method)(*arguments)

    def where(self, method: str) -> str:
        """``FILE:LINE`` of a method; of the class, where the method is inherited or no function."""
        for value in (getattr(type(self.task), method, None), type(self.task)):
            try:
                if value is not None and inspect.getsourcefile(value) == self.path:
                    return f"{self.path}:{inspect.getsourcelines(value)[1]}"
            except (OSError, TypeError):
                continue
        return self.path

    @contextmanager
    def blamed(self, what: str, method: str) -> Iterator[None]:
        """Within it an error is the user's. UserError: there was one; ``what`` raised it, and where its traceback is never in the file,
        ``method`` is named as the place.
        """
        try:
            yield
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            # torch ends what it computes again, once it has what it wants, by an error of its own.
            if _is_shortage(error) or type(error).__module__ == "torch.utils.checkpoint":
                raise
            raise UserError(self._told(error, what, method)) from error

    def _told(self, error: BaseException, what: str, method: str) -> str:
        line = line_in(error, self.path)
        return f"{self.where(method) if line is None else f'{self.path}:{line}'}: {what}: {_kind(error)}"


def load_own(model: Model) -> Own:
    """The object of the class in ``model.python``, the same for all who ask. UserError: the file is not what the run began with, it
    cannot be imported, or it has no such class, or that lacks a method.
    """
    assert model.python_file is not None, "the model is not the user's own"
    return _load(*model.python_file, model.python_sha256)


def blame(job: LiveMigrationJob, error: BaseException) -> str | None:
    """What to tell of ``error``, where it comes out of the user's file; None: it does not."""
    file = job.spec.model.python_file
    line = None if file is None or _is_shortage(error) else line_in(error, file[0])
    return None if file is None or line is None else f"{file[0]}:{line}: {_kind(error)}"


def line_in(error: BaseException, path: str) -> int | None:
    """The line of the file at ``path`` in which ``error`` was raised, or that called what raised it; None: it has nothing to do with it."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    return lines[-1] if lines else None


def settled(job: LiveMigrationJob) -> LiveMigrationJob:
    """``job`` with the digest of its file, where it does not have it. UserError: the file cannot be read."""
    model = job.spec.model
    if model.python_file is None or model.python_sha256 is not None:
        return job
    update = {"python_sha256": hashlib.sha256(_content(model.python_file[0])).hexdigest()}
    return job.model_copy(update={"spec": job.spec.model_copy(update={"model": model.model_copy(update=update)})})


def is_own(spec: JobSpec) -> bool:
    """Whether the job's model and task are a class of the user's."""
    return spec.model.python is not None


@cache
def _load(path: str, name: str, sha256: str | None) -> Own:
    content = _content(path)
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise UserError(
            f"{path} is not what the run began with (SHA-256 {found}, not {sha256}): put it back, or start over in another output.path"
        )
    if name == SCRIPT:
        return _script(path, content)
    module = _imported(path, content, _MODULE + hashlib.sha256(path.encode() + content).hexdigest()[:16])
    kind = getattr(module, name, None)
    if not isinstance(kind, type):
        names = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__]
        has = f"has {listed(names)}" if names else "has none"
        raise UserError(f"{path} has no class {name}{did_you_mean(name, names)} (it {has}): model.python names it")
    try:
        own = Own(path, name, kind())
    except (Exception, SystemExit) as error:
        line = line_in(error, path) or inspect.getsourcelines(kind)[1]
        raise UserError(f"{path}:{line}: {name}(): {_kind(error)}") from error
    for method, count in {**REQUIRED, **{key: count for key, count in OPTIONAL.items() if own.has(key)}}.items():
        _require(own, method, count)
    return own


def _script(path: str, content: bytes) -> Own:
    """The trainer of the script at ``path``, as an object of a class."""
    from lmj_trainer.own.script import trainer_of

    _find_beside(path)
    try:
        trainer = trainer_of(path, content)
    except (Exception, SystemExit) as error:
        line = line_in(error, path)
        raise UserError(f"{path}{'' if line is None else f':{line}'}: {_kind(error)}") from error
    if trainer is None:
        raise UserError(
            f"{path} ends without train() of an lmj.Trainer: model.python {Path(path).name}:{SCRIPT} is for such a script"
        )

    from lmj_trainer.own.script_task import ScriptTask

    own = Own(path, "Trainer", ScriptTask(trainer))
    own.call("look")
    return own


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"model.python: {path} cannot be read: {error.strerror}") from error


def _imported(path: str, content: bytes, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = path
    # What is defined there looks its module up by name: dataclasses do.
    sys.modules[name] = module
    _find_beside(path)
    try:
        exec(compile(content, path, "exec", dont_inherit=True), vars(module))  # noqa: S102 - the user asked for it
    except (Exception, SystemExit) as error:
        line = line_in(error, path)
        raise UserError(f"{path}{'' if line is None else f':{line}'}: {_kind(error)}") from error
    return module


def _find_beside(path: str) -> None:
    """Have the file at ``path`` find modules beside it."""
    folder = str(Path(path).parent)
    if folder not in sys.path:
        # Last: a file of the user's that is called csv.py is no module of ours.
        sys.path.append(folder)


def _require(own: Own, method: str, count: int) -> None:
    value: Callable[..., Any] | None = getattr(own.task, method, None)
    if not callable(value):
        missing = "has no method" if value is None else "has something that is no method as"
        raise UserError(f"{own.where('__init__')}: class {own.name} {missing} {method}: it needs {', '.join(REQUIRED)}")
    try:
        inspect.signature(value).bind(*range(count))
    except TypeError as error:
        raise UserError(
            f"{own.where(method)}: {own.name}.{method} is called with {count} argument{'s' * (count != 1)}: {one_line(error)}"
        ) from error
    except ValueError:  # it has no signature
        return


def _kind(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {one_line(said)}" if said else type(error).__name__


def _is_shortage(error: BaseException) -> bool:
    """Whether ``error`` says that there is no memory: on another node, or beside others, there may be."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
