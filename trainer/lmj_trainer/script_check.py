"""What can be known of a user's script before it is run: whether it is there, and is Python. None of it is executed."""

import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path

from lmj_api.base import Message
from lmj_api.spec import JobSpec
from lmj_api.spec.command import Command
from lmj_trainer.errors import UserError


class ScriptSummary(Message):
    """A job that runs a script, in numbers."""

    script: str
    """The file, module or program."""
    working_dir: str
    """Where its processes start."""
    replicas: int
    """Pods that it runs in."""
    processes: int
    """Processes of all of them: its world size."""

    @property
    def lines(self) -> list[str]:
        """The same for people."""
        each = self.processes // self.replicas
        return [f"script: {self.script}, in {self.working_dir}", f"processes: {self.processes} ({self.replicas} x {each})"]


def check_script(spec: JobSpec) -> ScriptSummary:
    """What ``spec``, of a script, comes to. Raises UserError when the script is not there, or is no Python."""
    command = spec.command
    assert command is not None
    folder = Path(command.working_dir or ".")
    first, replicas = command.args[0], spec.data_parallel.replicas
    if first == "-m":
        name = _module(command, folder)
    elif first.endswith(".py"):
        name = _file(folder / first)
    else:
        name = first
    return ScriptSummary(script=name, working_dir=str(folder), replicas=replicas, processes=replicas * command.processes_per_node)


def _file(path: Path) -> str:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"command.args: {path} cannot be read: {error.strerror or error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its processes say so again
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UserError(f"command.args: {path}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"command.args: {path} is no Python: {error}") from error
    return str(path)


def _module(command: Command, folder: Path) -> str:
    """The module's name. Its package is looked for, and not what is inside: that would be to import it."""
    name = command.args[1]
    package = name.partition(".")[0]
    if package not in sys.builtin_module_names and PathFinder.find_spec(package, [str(folder), *sys.path]) is None:
        raise UserError(f"command.args: there is no module {package}, neither in {folder} nor among what is installed")
    return name
