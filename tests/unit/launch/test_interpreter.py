"""A forked process is to its script what ``python script.py`` is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_trainer.launch import interpreter

P, K = WorkerPhase, EventKind
real = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are run on Linux alone"),
]

SELF = """
import atexit, json, logging, multiprocessing, os, pickle, signal, sys, threading
import helper
class Thing:
    pass
def told():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig": sys.orig_argv[1:], "path": sys.path[0], "name": __name__, "file": __file__, "cwd": os.getcwd(),
        "spec": getattr(main.__spec__, "name", None),
        "package": main.__package__, "loader": type(main.__loader__).__name__, "main": main.__dict__ is globals(),
        "names": sorted(globals()), "pickled": type(pickle.loads(pickle.dumps(Thing()))) is Thing, "helper": helper.NAME,
        "term": str(signal.getsignal(signal.SIGTERM)), "int": str(signal.getsignal(signal.SIGINT).__name__),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "handlers": len(logging.getLogger().handlers),
        "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "stdin": os.readlink("/proc/self/fd/0"),
        "threads": len(os.listdir("/proc/self/task")), "leader": os.getsid(0) == os.getpid(), "parent": multiprocessing.parent_process(),
    }
open("told", "w").write(json.dumps(told()))
late = open("late", "w")
late.write("buffered")
atexit.register(lambda: open("order", "a").write("exit "))
threading.Thread(target=lambda: (threading.main_thread().join(), open("order", "a").write("thread "))).start()
"""


def plain(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The same as Python does it."""
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("argv", [["sub/self.py", "--epochs", "3"], ["-m", "sub.self", "x"]])
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_a_script_finds_what_it_would_find(ranks: Any, argv: list[str]) -> None:
    ranks.write("sub/self.py", SELF)
    ranks.write("helper.py" if argv[0] == "-m" else "sub/helper.py", "NAME = __name__")
    await ranks.begin(1, *argv)
    ranks.view()
    await ranks.until(P.COMPLETED)
    told, late, order = (ranks.written(name) for name in ("told", "late", "order"))
    assert ranks.state(0).worker.exit is None or ranks.state(0).worker.exit.code == 0
    plain(ranks.folder, *argv)
    assert json.loads(told) == json.loads(ranks.written("told"))
    assert (late, order) == ("buffered", "thread exit ")


FAILURES = {
    "raises": "def f():\n    raise ValueError('no such thing')\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('later') from error\n",
    "text": "import sys\nsys.exit('it is wrong')\n",
    "syntax": "x = = 1\n",
    "hook": "import sys\nsys.excepthook = lambda *error: print('hooked', error[0].__name__, file=sys.stderr)\nraise KeyError(1)\n",
    "negative": "import sys\nsys.exit(-1)\n",
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_failures_are_told_as_python_does(ranks: Any, name: str) -> None:
    ranks.write("fail.py", FAILURES[name])
    await ranks.begin(1, "fail.py")
    ranks.view()
    await ranks.until(P.EXITED)
    ended, expected = ranks.state(0).worker.exit, plain(ranks.folder, "fail.py")
    assert ended.code == expected.returncode
    assert [line for line in ended.stderr if "lmj.launch" not in line] == expected.stderr.rstrip().splitlines()


LOADERS = """
import os, sys, torch, multiprocessing
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i, os.getpid()])
def double(x): return 2 * x
if __name__ == "__main__":
    method = sys.argv[1]
    rows = torch.cat(list(DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context=method)))
    with multiprocessing.get_context(method).Pool(2) as pool:
        doubled = pool.map(double, range(4))
    open("out", "w").write(f"{rows[:, 0].tolist()} {len(set(rows[:, 1].tolist()))} {doubled}")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_workers_of_data_loaders_start(ranks: Any, method: str) -> None:
    ranks.write("load.py", LOADERS)
    await ranks.begin(1, "load.py", method)
    ranks.view()
    await ranks.until(P.COMPLETED)
    assert ranks.written("out") == "[0, 1, 2, 3, 4, 5, 6, 7] 2 [0, 2, 4, 6]"


SEEDS = """
import os, random, sys, numpy, torch
print(sys.modules.get("datasets") is not None, torch.get_num_threads(), random.random(), numpy.random.rand(), torch.rand(1).item(),
      file=open("seeds-" + os.environ["RANK"], "w"))
"""


@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_processes_have_libraries_and_threads_and_draw_their_own_numbers(ranks: Any) -> None:
    ranks.write("seeds.py", SEEDS)
    await ranks.begin(1, "seeds.py", processesPerNode=2, threads=3)
    ranks.view()
    await ranks.until(P.COMPLETED)
    first, second = (ranks.written(f"seeds-{rank}").split() for rank in range(2))
    assert first[:2] == second[:2] == ["True", "3"]
    assert first[2] != second[2]
    assert first[3] != second[3]
    assert first[4] == second[4], "torch begins with the same seed everywhere, as it does in a new process"


@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_a_module_beside_the_script_wins_over_what_is_loaded(ranks: Any) -> None:
    ranks.write("accelerate.py", "NAME = 'mine'")
    ranks.write("own.py", "import accelerate\nopen('out', 'w').write(accelerate.NAME)\n")
    await ranks.begin(1, "own.py")
    ranks.view()
    await ranks.until(P.COMPLETED)
    assert ranks.written("out") == "mine"


def test_names_that_are_loaded_are_looked_for_beside_the_script(tmp_path: Path) -> None:
    for name in ("json.py", "fresh.py", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "pytest").mkdir()
    assert interpreter.shadowed(str(tmp_path)) == ["json"], "a folder without __init__.py gives way to an installed package"
    (tmp_path / "pytest" / "__init__.py").write_text("")
    assert sorted(interpreter.shadowed(str(tmp_path))) == ["json", "pytest"]
    assert interpreter.shadowed(str(tmp_path / "none")) == []
    assert "lmj_trainer" not in interpreter.shadowed(str(Path(interpreter.__file__).parents[2])), "it is that one"


def test_what_is_python() -> None:
    assert interpreter.is_python(["train.py"])
    assert interpreter.is_python(["-m", "train"])
    assert not interpreter.is_python(["bash", "train.py"])
