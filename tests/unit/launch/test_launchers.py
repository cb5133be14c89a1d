"""Launchers that run real scripts, in one view and in the next."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signing import KEY, POD, ask

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.caller import Caller
from lmj_trainer.launch import store
from lmj_trainer.launch.processors import shares, usable_cores

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
MEET = """
import os, time
import torch.distributed as dist
rank = os.environ["RANK"]
while rank == "0" and not os.path.exists("met"):
    time.sleep(0.02)
if rank == "1":
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.set("here", "1")
    open("met", "w").close()
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
LEAVE = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open("pid", "w").write(f"{os.getppid()} {os.getpid()} {child.pid}")
os.rename("pid", "pid-0")
time.sleep(600)
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
    cold_ranks.write("leave.py", LEAVE)
    await cold_ranks.begin(1, "leave.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: cold_ranks.written("pid-0"))
    found = [int(pid) for pid in cold_ranks.written("pid-0").split()]
    cold_ranks.supervisors[0].kill("for the test")
    await cold_ranks.until(P.EXITED)
    await cold_ranks.eventually(lambda: not any(map(lives, found)))


async def test_a_starter_that_is_killed_ends_its_launcher(cold_ranks: Any, lives: Callable[[int], bool]) -> None:
    cold_ranks.write("keep.py", KEEP.replace("rank = os", "print(os.getppid(), file=open('starter', 'w'))\nrank = os"))
    await cold_ranks.begin(1, "keep.py")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: pids(cold_ranks, "pid-0"))
    os.kill(int(cold_ranks.written("starter")), signal.SIGKILL)
    await cold_ranks.until(P.EXITED)
    await cold_ranks.eventually(lambda: not lives(pids(cold_ranks, "pid-0")[0]))


REPORT = """
import os, sys, time, urllib.request
def report(line):
    urllib.request.urlopen(urllib.request.Request(os.environ["LMJ_PROGRESS_URL"], data=line.encode()), timeout=10).close()
if os.environ["RANK"] == "0":
    report('{"step": 3, "steps": 8, "loss": 0.5}')
    open("log", "a").write('{"step": 4}\\n')
open("said-" + os.environ["RANK"], "w").write(str("KUBEFLOW_TRAINER_SERVER_URL" in os.environ) + " " + " ".join(sys.argv[1:]))
"""


async def test_what_a_script_reports_is_told_where_it_goes_on_too(cold_ranks: Any) -> None:
    cold_ranks.write("report.py", REPORT)
    cold_ranks.write("saved/checkpoint-2/trainer_state.json", '{"global_step": 2}')
    saved = str(cold_ranks.folder / "saved")
    await cold_ranks.begin(2, "report.py", progressFile="log", checkpoints=saved)
    cold_ranks.view()
    await cold_ranks.until(P.COMPLETED, P.COMPLETED)
    resumed = f"--resume_from_checkpoint {saved}/checkpoint-2"
    assert [cold_ranks.written(f"said-{rank}") for rank in range(2)] == [f"True {resumed}", f"False {resumed}"]
    progress = cold_ranks.state(0).worker.progress
    assert (progress.step, progress.steps, progress.loss) == (4, 8, 0.5)
    assert cold_ranks.events(1, K.COMMITTED) == []


async def test_signs_of_life_are_told_and_a_program_may_be_anything(cold_ranks: Any) -> None:
    cold_ranks.write("busy.sh", "touch pid-$RANK; while [ ! -e end ]; do :; done")
    await cold_ranks.begin(1, "sh", "busy.sh")
    cold_ranks.view()
    await cold_ranks.eventually(lambda: cold_ranks.events(0, K.PREPARING))
    cold_ranks.write("end", "")
    await cold_ranks.until(P.COMPLETED)


async def test_processes_have_processors_of_their_own(cold_ranks: Any) -> None:
    cold_ranks.write(
        "cores.py", "import os\nopen('cores-' + os.environ['RANK'], 'w').write(str(sorted(os.sched_getaffinity(0))))\n"
    )
    await cold_ranks.begin(1, "cores.py", processesPerNode=2, bindCores=True)
    cold_ranks.view()
    await cold_ranks.until(P.COMPLETED)
    assert [cold_ranks.written(f"cores-{rank}") for rank in range(2)] == [str(part) for part in shares(usable_cores(), 2)]


async def test_a_program_that_is_not_there(cold_ranks: Any) -> None:
    await cold_ranks.begin(1, "no-such-program")
    cold_ranks.view()
    await cold_ranks.until(P.EXITED)
    ended = cold_ranks.state(0).worker.exit
    assert (ended.code, ended.message) == (127, "no-such-program cannot be started: No such file or directory")


async def test_a_rank_that_hangs_says_where_it_stands(ranks: Any) -> None:
    ranks.write("hang.py", "import threading\nopen('pid-0', 'w').write('1')\nthreading.Event().wait()\n")
    await ranks.begin(1, "hang.py")
    ranks.view()
    await ranks.eventually(lambda: pids(ranks, "pid-0"))
    await ranks.start(0)
    await ranks.until(P.READY)
    (ended,) = [event.exit for event in ranks.events(0, K.WORKER_EXITED)]
    assert any("hang.py" in line and "line 3" in line for line in ended.stderr), ended.stderr


async def test_a_standby_has_everything_imported(ranks: Any) -> None:
    await ranks.begin(1, "never.py")
    standby = ranks.standby()
    await ranks.eventually(lambda: standby.state.warm)
    warmed = [event.message for event in standby.log.after(0) if event.kind is K.WARM]
    assert warmed == ["everything is imported"]


async def test_processes_find_a_store_before_rank_0_is_there(ranks: Any) -> None:
    """Else one that is first tries again after up to half a second."""
    ranks.write("meet.py", MEET)
    await ranks.begin(2, "meet.py")
    ranks.view()
    await ranks.until(P.COMPLETED, P.COMPLETED)


async def test_a_view_ends_with_its_store(ranks: Any) -> None:
    ranks.write("train.py", TRAIN)
    await ranks.begin(2, "train.py")
    ranks.view()
    await ranks.eventually(lambda: ranks.written("pid-0") and ranks.written("pid-1"))
    os.kill(store_of(int(ranks.written("pid-0"))), signal.SIGKILL)
    await ranks.eventually(lambda: ranks.events(1, K.LOST_PEER))
    assert ranks.events(1, K.LOST_PEER)[0].message == "the script's store (a process of rank 0) was ended by SIGKILL"


def store_of(pid: int) -> int:
    """The process that serves the store of process ``pid`` of the script: they have the same parent."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, told = (entry / "stat").read_text(), (entry / "cmdline").read_text()
        except OSError:
            continue  # it has ended
        if store.PROGRAM in told and int(stat.rpartition(")")[2].split()[1]) == parent(pid):
            return int(entry.name)
    raise AssertionError("there is no store")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_one_process_meets_where_it_wants(ranks: Any) -> None:
    """A script that spawns its own processes takes an address of its own, and its rank 0 serves it."""
    ranks.write("show.py", "import os\nopen('said', 'w').write(os.environ['TORCHELASTIC_USE_AGENT_STORE'])\n")
    await ranks.begin(1, "show.py")
    ranks.view()
    await ranks.until(P.COMPLETED)
    assert ranks.written("said") == "False"


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
    await asyncio.to_thread(
        subprocess.run, torchrun, cwd=ranks.folder, env=ranks.environment, check=True, timeout=100, capture_output=True
    )
    theirs = [json.loads(ranks.written(f"env-{rank}")) for rank in range(2)]
    own = {name for name in mine[0] if name.startswith(("PET_", "LMJ_", "KUBEFLOW_"))}
    for rank in range(2):
        # A library that has been imported has set the first; a process that fails says so by its exit code, and needs no file for that.
        assert mine[rank].keys() - own - {"TORCHINDUCTOR_CACHE_DIR"} == theirs[rank].keys() - {
            "TORCHELASTIC_ERROR_FILE",
            "LMJ_INTERFACE",
        }
        free = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"}
        same = theirs[rank].keys() & mine[rank].keys() - free
        assert {name: mine[rank][name] for name in same} == {name: theirs[rank][name] for name in same}


@pytest.mark.e2e
async def test_an_agent_that_is_killed_leaves_no_process(tmp_path: Path, lives: Callable[[int], bool]) -> None:
    """The real agent, with everything that belongs to it."""
    document = {
        "metadata": {"name": "scripted"},
        "spec": {
            "strategy": "Command",
            "command": {"args": ["leave.py"], "workingDir": str(tmp_path)},
            "output": {"path": str(tmp_path / "out")},
        },
    }
    (tmp_path / "job.json").write_text(LiveMigrationJob.model_validate(document).to_json())
    (tmp_path / "leave.py").write_text(LEAVE)
    command = [sys.executable, "-m", "lmj_trainer", "agent", "--rank", "0", "--pod", "pod-0", "--dir", str(tmp_path / "pod")]
    command += ["--job", str(tmp_path / "job.json"), "--uid", POD, f"--trust={KEY.public}"]
    with subprocess.Popen(command) as agent:  # noqa: ASYNC220 - it is told to the kernel and not waited for
        try:
            await until((tmp_path / "pod" / "agent.json").exists)
            port = json.loads((tmp_path / "pod" / "agent.json").read_text())["port"]
            agent_of = f"127.0.0.1:{port}", Caller(KEY, "", POD)
            tell(*agent_of, "PUT", "worker", {"incarnation": 1})
            await until(lambda: tell(*agent_of, "GET", "state")["worker"]["phase"] == "Ready")
            state = tell(*agent_of, "GET", "state")
            member = {"rank": 0, "pod": "pod-0", "incarnation": 1, "address": state["worker"]["address"]}
            tell(*agent_of, "PUT", "view", {"number": 1, "members": [member], "resume": {"step": 0}, "reason": "for the test"})
            await until((tmp_path / "pid-0").exists)
            found = [state["worker"]["pid"], *map(int, (tmp_path / "pid-0").read_text().split())]
            assert all(map(lives, found))
        finally:
            agent.kill()
    await until(lambda: not any(map(lives, found)))


def tell(address: str, caller: Caller, method: str, path: str, body: Any = None) -> Any:
    with ask(address, caller, method, f"/v1/{path}", None if body is None else json.dumps(body).encode(), 20) as answer:
        return json.load(answer)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.02)
