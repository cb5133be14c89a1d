"""Launchers that run real scripts, in one view and in the next."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lmj_api.protocol import EventKind, WorkerPhase

P, K = WorkerPhase, EventKind
pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are run on Linux alone"),
]

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank = dist.get_rank()
with open(f"sum-{rank}", "a") as file:
    print(int(total), os.environ["LMJ_VIEW"], file=file)
open(f"pid-{rank}", "w").write(str(os.getpid()))
while not os.path.exists("end"):
    time.sleep(0.02)
    dist.all_reduce(total)
dist.destroy_process_group()
"""
KEEP = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def save(*_):
    pathlib.Path(f"saved-{rank}").write_text(os.environ["LMJ_VIEW"])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))
while not os.path.exists("end"):
    time.sleep(0.02)
"""


def pids(it: Any, *names: str) -> list[int]:
    return [int(text) for name in names if (text := it.written(name))]


async def test_processes_of_all_ranks_train_and_complete(ranks: Any) -> None:
    ranks.write("train.py", TRAIN)
    ranks.write("end", "")
    await ranks.begin(2, "train.py", processesPerNode=2)
    ranks.view()
    await ranks.until(P.COMPLETED, P.COMPLETED)
    assert [ranks.written(f"sum-{rank}") for rank in range(4)] == ["4 1\n"] * 4
    await ranks.eventually(lambda: all(ranks.state(rank).worker.exit is not None for rank in range(2)))
    assert [ranks.state(rank).worker.exit.code for rank in range(2)] == [0, 0]


async def test_a_launcher_that_is_killed_leaves_no_process_and_the_others_go_on(ranks: Any, lives: Callable[[int], bool]) -> None:
    ranks.write("train.py", TRAIN)
    await ranks.begin(2, "train.py")
    ranks.view()
    await ranks.eventually(lambda: len(pids(ranks, "pid-0", "pid-1")) == 2)
    first, second = pids(ranks, "pid-0", "pid-1")
    os.kill(ranks.state(1).worker.pid, signal.SIGKILL)
    await ranks.until(P.READY, P.EXITED)
    assert ranks.state(0).worker.lost_rank == 1
    await ranks.eventually(lambda: not lives(first) and not lives(second))
    await ranks.start(1)
    await ranks.until(P.READY, P.READY)
    ranks.write("end", "")
    ranks.view()
    await ranks.until(P.COMPLETED, P.COMPLETED)
    assert ranks.written("sum-1") == "2 1\n2 2\n"


async def test_a_process_that_is_killed_ends_its_launcher_alone(ranks: Any, lives: Callable[[int], bool]) -> None:
    ranks.write("train.py", TRAIN)
    await ranks.begin(2, "train.py", processesPerNode=2)
    ranks.view()
    names = [f"pid-{rank}" for rank in range(4)]
    await ranks.eventually(lambda: len(pids(ranks, *names)) == 4)
    os.kill(pids(ranks, "pid-3")[0], signal.SIGKILL)
    await ranks.until(P.READY, P.EXITED)
    assert ranks.state(1).worker.exit.code == 128 + signal.SIGKILL
    warned = "rank 3 of the script (process 1 of rank 1) was ended by SIGKILL"
    assert [event.message for event in ranks.events(1, K.WARNING)] == [warned]
    assert (ranks.state(0).worker.lost_rank, ranks.state(0).worker.lost) == (1, warned)
    await ranks.eventually(lambda: not any(map(lives, pids(ranks, *names))))


async def test_the_code_of_a_script_is_its_launchers(cold_ranks: Any) -> None:
    cold_ranks.write("fail.py", "import sys\nprint('no such row', file=sys.stderr)\nsys.exit(3)\n")
    await cold_ranks.begin(1, "fail.py")
    cold_ranks.view()
    await cold_ranks.until(P.EXITED)
    ended = cold_ranks.state(0).worker.exit
    assert (ended.code, ended.message) == (3, "no such row")


async def test_a_pause_lets_all_save_and_be_ready(cold_ranks: Any) -> None:
    cold_ranks.write("keep.py", KEEP)
    await cold_ranks.begin(2, "keep.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: len(pids(cold_ranks, "pid-0", "pid-1")) == 2)
    cold_ranks.supervisors[1].pause(1)
    await cold_ranks.until(P.READY, P.READY)
    assert [cold_ranks.written(f"saved-{rank}") for rank in range(2)] == ["1", "1"]
    assert [cold_ranks.state(rank).worker.lost_rank for rank in range(2)] == [None, None]
    cold_ranks.write("end", "")
    cold_ranks.view()
    await cold_ranks.until(P.COMPLETED, P.COMPLETED)


async def test_a_drain_moves_one_and_lets_the_others_be_ready(cold_ranks: Any) -> None:
    cold_ranks.write("keep.py", KEEP)
    await cold_ranks.begin(2, "keep.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: len(pids(cold_ranks, "pid-0", "pid-1")) == 2)
    cold_ranks.supervisors[0].drain()
    await cold_ranks.until(P.DRAINED, P.READY)
    assert [cold_ranks.written(f"saved-{rank}") for rank in range(2)] == ["1", "1"]


async def test_who_saves_for_too_long_is_killed(cold_ranks: Any, lives: Callable[[int], bool]) -> None:
    cold_ranks.write("deaf.py", KEEP.replace("sys.exit(0)", "pass"))
    await cold_ranks.begin(1, "deaf.py", saveSeconds=0.2)
    cold_ranks.view()
    await cold_ranks.eventually(lambda: pids(cold_ranks, "pid-0"))
    cold_ranks.supervisors[0].pause(1)
    await cold_ranks.until(P.READY)
    assert not lives(pids(cold_ranks, "pid-0")[0])
    assert cold_ranks.written("saved-0") == "1"


async def test_a_view_that_is_to_be_left_is_left_at_once(cold_ranks: Any, lives: Callable[[int], bool]) -> None:
    cold_ranks.write("keep.py", KEEP)
    await cold_ranks.begin(1, "keep.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: pids(cold_ranks, "pid-0"))
    cold_ranks.supervisors[0].leave_view(1)
    await cold_ranks.until(P.READY)
    assert not lives(pids(cold_ranks, "pid-0")[0])
    assert cold_ranks.written("saved-0") == ""


async def test_processes_that_left_their_group_end_with_the_launcher(cold_ranks: Any, lives: Callable[[int], bool]) -> None:
    cold_ranks.write(
        "leave.py",
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('pid-0', 'w').write(str(child.pid))\n"
        "time.sleep(600)\n",
    )
    await cold_ranks.begin(1, "leave.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: pids(cold_ranks, "pid-0"))
    (child,) = pids(cold_ranks, "pid-0")
    cold_ranks.supervisors[0].kill("for the test")
    await cold_ranks.until(P.EXITED)
    await cold_ranks.eventually(lambda: not lives(child))


async def test_a_starter_that_is_killed_ends_its_launcher(cold_ranks: Any, lives: Callable[[int], bool]) -> None:
    cold_ranks.write("keep.py", KEEP.replace("rank = os", "print(os.getppid(), file=open('starter', 'w'))\nrank = os"))
    await cold_ranks.begin(1, "keep.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: pids(cold_ranks, "pid-0"))
    os.kill(int(cold_ranks.written("starter")), signal.SIGKILL)
    await cold_ranks.until(P.EXITED)
    await cold_ranks.eventually(lambda: not lives(pids(cold_ranks, "pid-0")[0]))


async def test_variables_are_those_of_torchrun(ranks: Any) -> None:
    """Compared with the real one, in what is set and in all that does not depend on the place."""
    show = ranks.write(
        "show.py", "import json, os\nprint(json.dumps(dict(os.environ)), file=open(f\"env-{os.environ['RANK']}\", 'w'))\n"
    )
    await ranks.begin(1, "show.py", processesPerNode=2)
    ranks.view()
    await ranks.until(P.COMPLETED)
    mine = [json.loads(ranks.written(f"env-{rank}")) for rank in range(2)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", str(show)]
    subprocess.run(torchrun, cwd=ranks.folder, env=ranks.environment, check=True, timeout=100, capture_output=True)
    theirs = [json.loads(ranks.written(f"env-{rank}")) for rank in range(2)]
    own = {"LMJ_JOB", "LMJ_VIEW", "LMJ_OUTPUT_DIR"} | {name for name in mine[0] if name.startswith("PET_")}
    for rank in range(2):
        # A library that has been imported has set the first; a process that fails says so by its exit code, and needs no file for that.
        assert mine[rank].keys() - own - {"TORCHINDUCTOR_CACHE_DIR"} == theirs[rank].keys() - {
            "TORCHELASTIC_ERROR_FILE",
            "LMJ_INTERFACE",
        }
        free = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"}
        same = theirs[rank].keys() & mine[rank].keys() - free
        assert {name: mine[rank][name] for name in same} == {name: theirs[rank][name] for name in same}
