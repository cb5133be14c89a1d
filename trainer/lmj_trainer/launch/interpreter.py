"""A forked process that has libraries imported becomes what ``python script.py`` is: the script sees no difference but the time it takes.

Two it could see: modules that it does not import are loaded, and NumPy was loaded with one thread (it is given its number later).
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import logging
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from lmj_trainer import linux
from lmj_trainer.launch import memory

_SUFFIXES = (".py", ".pyc", *EXTENSION_SUFFIXES)
_SET_THREADS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_")


def is_python(argv: Sequence[str]) -> bool:
    """Whether ``argv`` is what would follow ``python``: a file, or ``-m`` and a module."""
    return argv[0] == "-m" or argv[0].endswith(".py")


def may_become(argv: Sequence[str], cwd: str) -> bool:
    """Whether this process, forked, can become ``python *argv`` in ``cwd``.

    Not where the libraries are not there: nothing would be won. Not where the script's folder has modules of its own by names that are
    loaded here already: Python would have taken those.
    """
    return is_python(argv) and "torch" in sys.modules and not shadowed(_folder(argv, cwd))


def shadowed(folder: str) -> list[str]:
    """Modules in ``folder`` whose names are loaded, from elsewhere."""
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    found = []
    for entry in entries:
        name = entry.name.partition(".")[0]
        package = os.path.join(entry.path, "__init__.py")
        if name in loaded and (entry.name.endswith(_SUFFIXES) or os.path.isfile(package)) and not _is_from(name, folder):
            found.append(name)
    return found


def _is_from(name: str, folder: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))


def _folder(argv: Sequence[str], cwd: str) -> str:
    """What Python has as the first entry of ``sys.path``."""
    return cwd if argv[0] == "-m" else os.path.dirname(os.path.realpath(os.path.join(cwd, argv[0])))


def become(argv: Sequence[str], environment: Mapping[str, str], blocked: Sequence[signal.Signals] = ()) -> NoReturn:
    """Run ``python *argv`` in this process, which has one thread, no open files but the standard ones, and its folder already.

    ``blocked``: signals that wait until this process is set up.
    """
    code = 1
    try:
        _prepare(argv, environment)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        code = _status(lambda: _execute(argv))
        for last in (threading._shutdown, atexit._run_exitfuncs, _flush):  # type: ignore[attr-defined]
            ended = _status(last)
            code = code or ended
    finally:
        os._exit(code)


def _prepare(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    linux.show_arguments([sys.executable, *argv])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A rank that hangs is asked by this where it stands, before it is ended.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    _settle_libraries(environment)
    sys.argv = list(argv)
    sys.orig_argv = [sys.executable, *argv]
    if getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")  # the fork server was started without the entry that every script has
    sys.path[0] = _folder(argv, os.getcwd())
    importlib.invalidate_caches()
    for name in ("multiprocessing.process", "multiprocess.process"):
        if name in sys.modules:
            sys.modules[name].ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    sys.modules["__main__"] = _fresh_main()
    memory.install()


def _settle_libraries(environment: Mapping[str, str]) -> None:
    """What the libraries read of the environment, or drew at random, when they were imported."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    threads = environment.get("OMP_NUM_THREADS", "")
    if not threads.isdigit() or int(threads) == 0:
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(threads))
    blas = environment.get("OPENBLAS_NUM_THREADS", threads)
    if blas.isdigit() and int(blas) > 1:
        _set_openblas(int(blas))


def _set_openblas(threads: int) -> None:
    """Of NumPy's own. Where it is another library, that goes on with one thread."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.split(maxsplit=5)[5] for line in maps if "openblas" in line}:
        library = ctypes.CDLL(path)
        for name in _SET_THREADS:
            if hasattr(library, name):
                getattr(library, name)(threads)
                break


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update({"__builtins__": sys.modules["builtins"], "__annotations__": {}})
    return main


def _execute(argv: Sequence[str]) -> None:
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
        return
    path = os.path.join(os.getcwd(), argv[0])
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        sys.exit(_cannot_open(path, error))
    names = sys.modules["__main__"].__dict__
    names.update({"__file__": path, "__loader__": SourceFileLoader("__main__", path), "__cached__": None})
    exec(compile(source, path, "exec", dont_inherit=True), names)  # noqa: S102 - this is what it is for


def _cannot_open(path: str, error: OSError) -> int:
    print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
    return 2


def _status(run: Callable[[], None]) -> int:
    """The exit code of the process if ``run()`` is what it does; what it raises is told as Python does."""
    try:
        run()
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return (left.code or 0) & 0xFF
        print(left.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _tell(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130
    except BaseException as error:  # noqa: BLE001 - it is the script's, and this is the end of it
        _tell(error)
        return 1
    return 0


def _tell(error: BaseException) -> None:
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename == __file__:
        at = at.tb_next
    sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(at), at)


def _flush() -> None:
    """What Python does when it ends: files that nobody closed are written."""
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with contextlib.suppress(OSError, ValueError):  # as Python does: nobody is left to be told
                thing.flush()
    sys.stdout.flush()
    sys.stderr.flush()
