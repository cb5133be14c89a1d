"""The pure parts of a launcher."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import Command as Order
from lmj_api.protocol import CommandKind
from lmj_api.signed import encoded
from lmj_api.spec import LiveMigrationJob
from lmj_api.spec.command import Command
from lmj_api.view import Member, Resume, View
from lmj_trainer.launch import environment
from lmj_trainer.launch.connection import split_address
from lmj_trainer.launch.door import free_port, own_host
from lmj_trainer.launch.environment import Meeting, Node
from lmj_trainer.launch.identity import Credentials, Identity
from lmj_trainer.launch.life import Pulse
from lmj_trainer.launch.outcome import Failed
from lmj_trainer.launch.processors import shares, usable_processors
from lmj_trainer.launch.resume import newest_checkpoint
from lmj_trainer.launch.words import Verdict, Word, WordKind

K = WordKind


def job(**command: Any) -> LiveMigrationJob:
    spec = {
        "strategy": "Command",
        "command": {"args": ["train.py", "--epochs", "3"], **command},
        "dataParallel": {"replicas": 3},
        "output": {"path": "/out"},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "scripted"}, "spec": spec})


def view(*ranks: int, number: int = 4) -> View:
    members = [Member(rank=rank, pod=f"pod-{rank}", incarnation=1, address=f"10.0.0.{rank}:7") for rank in ranks]
    return View(number=number, members=members, resume=Resume(step=0), reason="for the test")


def view_of(*identities: Identity, number: int = 4) -> View:
    """Of the launchers with these identities, as ranks from 0 on."""
    plain = view(*range(len(identities)), number=number)
    members = [
        m.model_copy(update={"address": identity.address(m.address)})
        for m, identity in zip(plain.members, identities, strict=True)
    ]
    return plain.model_copy(update={"members": members})


def told(base: dict[str, str], local: int = 1, **command: Any) -> dict[str, str]:
    it = job(processesPerNode=2, **command)
    assert it.spec.command is not None
    node = Node.of(view(0, 2), 2, it.spec.command)
    return environment.variables(base, it, node, local, Meeting("10.0.0.0", 20001, "/ckpt/checkpoint-5"), 8, {"EXTRA": "1"})


def test_ranks_are_counted_over_those_that_are_there() -> None:
    it = told({"RANK": "77", "HOME": "/root"})
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "HOME",
    )
    assert [it[name] for name in names] == ["3", "1", "4", "2", "1", "2", "10.0.0.0", "20001", "/root"]
    assert (it["PET_NNODES"], it["PET_NPROC_PER_NODE"], it["PET_NODE_RANK"]) == ("2", "2", "1")
    assert (it["TORCHELASTIC_RESTART_COUNT"], it["TORCHELASTIC_MAX_RESTARTS"]) == ("3", "10")
    assert (it["LMJ_JOB"], it["LMJ_VIEW"], it["LMJ_OUTPUT_DIR"]) == ("scripted", "4", "/out")
    assert (it["LMJ_RESUME_FROM_CHECKPOINT"], it["EXTRA"]) == ("/ckpt/checkpoint-5", "1")


@pytest.mark.parametrize(
    ("base", "threads", "expected"),
    [({}, None, ("4", None)), ({"OMP_NUM_THREADS": "7"}, None, ("7", None)), ({"OMP_NUM_THREADS": "7"}, 2, ("2", "2"))],
)
def test_threads(base: dict[str, str], threads: int | None, expected: tuple[str, str | None]) -> None:
    it = told(base, threads=threads)
    assert (it["OMP_NUM_THREADS"], it.get("MKL_NUM_THREADS")) == expected


@pytest.mark.parametrize(("said", "expected"), [({}, "True"), ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "False")])
def test_a_job_may_have_no_store(said: dict[str, str], expected: str) -> None:
    assert told(said)["TORCHELASTIC_USE_AGENT_STORE"] == expected
    node = Node(number=0, nodes=2, processes=1, view=1)
    assert environment.has_store(Command(args=["train.py"]), node, said) is (expected == "True")


def test_a_checkpoint_is_the_last_argument() -> None:
    command = Command(args=["train.py", "--lr", "1"])
    assert environment.arguments(command, None) == ["train.py", "--lr", "1"]
    assert environment.arguments(command, "/c") == ["train.py", "--lr", "1", "--resume_from_checkpoint", "/c"]


def test_processors_are_shared() -> None:
    assert shares([0, 1, 2, 5, 6], 2) == [[0, 1], [2, 5, 6]]
    assert shares([3, 4], 3) == [[3], [4], [3]]


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("cpu.max", "150000 100000\n", 2), ("cpu.max", "max 100000\n", 4), ("cpu.max", "50000 100000\n", 1), ("other", "", 4),
])  # fmt: skip
def test_a_quota_counts_as_processors(tmp_path: Path, name: str, content: str, expected: int) -> None:
    (tmp_path / name).write_text(content)
    assert usable_processors([0, 1, 2, 3], tmp_path) == expected


def test_a_quota_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, value in (("cfs_quota_us", 300000), ("cfs_period_us", 100000)):
        (tmp_path / "cpu" / f"cpu.{name}").write_text(f"{value}\n")
    assert usable_processors([0, 1, 2, 3], tmp_path) == 3


def test_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None
    for name, step in (("checkpoint-9", 9), ("checkpoint-10", 10), ("checkpoint-30x", 30), ("checkpoint-25", 24)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-20").mkdir()  # nothing in it yet
    (tmp_path / "checkpoint-21").mkdir()
    (tmp_path / "checkpoint-21" / "trainer_state.json").write_text('{"global_step": 2')
    (tmp_path / "checkpoint-22").write_text("a file")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def word(kind: WordKind, message: str = "") -> Word:
    return Word(kind=kind, message=message)


def test_a_view_is_complete_when_all_are_done() -> None:
    it = Verdict([0, 1])
    assert it.hear(1, word(K.DONE)) is None
    assert it.hear(1, word(K.DONE)) is None
    completed = it.hear(0, word(K.DONE))
    assert completed is not None
    assert completed.kind is K.COMPLETED
    assert it.gone(1, "it left") is None


def test_the_first_failure_is_the_cause() -> None:
    it = Verdict([0, 1, 2])
    assert it.hear(2, word(K.FAILED, "killed")) == Word(kind=K.LOST, rank=2, message="killed")
    assert it.hear(0, word(K.FAILED, "connection closed")) is None
    assert it.gone(1, "reset") is None


def test_who_is_gone_is_lost() -> None:
    lost = Verdict([0, 1]).gone(1, "reset")
    assert lost == Word(kind=K.LOST, rank=1, message="the launcher of rank 1 is lost: reset")


def test_who_was_told_to_leave_is_not_to_blame() -> None:
    assert Verdict([0, 1]).hear(1, word(K.LEFT, "view 4 lost a member")) == Word(kind=K.LOST, message="view 4 lost a member")


def test_a_stop_is_for_all_and_what_follows_is_no_failure() -> None:
    it = Verdict([0, 1])
    assert it.hear(0, word(K.DONE)) is None
    assert it.hear(1, word(K.STOP, "a rank is to leave")) == Word(kind=K.STOP, rank=1, message="a rank is to leave")
    assert it.hear(1, word(K.FAILED)) is None
    assert it.hear(1, word(K.DONE)) is None


def test_a_proof_is_of_one_view_one_nonce_one_role_and_one_rank() -> None:
    first, second = Identity(), Identity()
    of = view_of(first, second)
    mine = Credentials(first, "run", of)
    proof = mine.show("member", "n", 1)
    theirs = Credentials(second, "run", of)
    assert theirs.hold(proof, 0, "member", "n", 1)
    assert not theirs.hold(proof, 1, "member", "n", 1), "the other has another key"
    assert not theirs.hold(proof, 5, "member", "n", 1), "there is no such member"
    for role, nonce, rank in (("leader", "n", 1), ("member", "m", 1), ("member", "n", 2)):
        assert not theirs.hold(proof, 0, role, nonce, rank)
    for other in (Credentials(second, "other", of), Credentials(second, "run", view_of(first, second, number=5))):
        assert not other.hold(proof, 0, "member", "n", 1)
    for garbage in ("", "0", "zz", proof[:-2], proof + "00"):
        assert not theirs.hold(garbage, 0, "member", "n", 1)


def test_an_address_without_a_key_proves_nothing() -> None:
    identity = Identity()
    for address in ("h:1", "h:1#", "h:1#short", identity.address("h:1") + "#x"):
        plain = view(0)
        alone = plain.model_copy(update={"members": [plain.members[0].model_copy(update={"address": address})]})
        it = Credentials(identity, "run", alone)
        assert not it.hold(it.show("leader", "n", 0), 0, "leader", "n", 0)


def test_a_key_with_which_everybody_can_sign_proves_nothing() -> None:
    plain = view(0)
    address = "h:1#" + encoded(b"\x01" + bytes(31))
    alone = plain.model_copy(update={"members": [plain.members[0].model_copy(update={"address": address})]})
    assert not Credentials(Identity(), "run", alone).hold((b"\x01" + bytes(63)).hex(), 0, "leader", "n", 0)


@pytest.mark.parametrize(("place", "host"), [("10.0.0.1:5", "10.0.0.1"), ("[fd00::1]:5", "fd00::1")])
def test_where_a_launcher_listens_is_in_its_address(place: str, host: str) -> None:
    assert split_address(Identity().address(place)) == split_address(place) == (host, 5)


@pytest.mark.parametrize(("code", "status"), [(1, 1), (3, 3), (-9, 137), (-15, 143)])
def test_exit_codes_are_a_shells(code: int, status: int) -> None:
    assert Failed(code).status == status


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="of /proc")
def test_signs_of_life() -> None:
    quiet = subprocess.Popen(
        [sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert quiet.stdout is not None
        quiet.stdout.readline()
        it = Pulse()
        assert it.lively([quiet.pid], 0.0), "it was started"
        # By a clock of the test's own: so much time has passed that whatever a process did meanwhile is little.
        assert not it.lively([quiet.pid], 1000.0)
        busy = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()\nwhile True: pass"], stdin=subprocess.PIPE)
        try:
            assert it.lively([quiet.pid, busy.pid], 2000.0), "another was started"
            assert not it.lively([quiet.pid, busy.pid], 3000.0)
            assert busy.stdin is not None
            busy.stdin.close()
            before, end = cpu_seconds(busy.pid), time.monotonic() + 30
            while cpu_seconds(busy.pid) - before < 0.2:
                assert time.monotonic() < end
            assert it.lively([quiet.pid, busy.pid], 3000.5), "it computes"
        finally:
            busy.kill()
            busy.wait()
        assert not it.lively([quiet.pid], 4000.0), "fewer are no sign"
        assert not it.lively([], 5000.0)
    finally:
        quiet.kill()
        quiet.wait()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_free_port_can_be_listened_at() -> None:
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as server:
        assert server.getsockname()[1] > 0


def test_the_own_address() -> None:
    assert own_host({"LMJ_INTERFACE": "lo"}) == "127.0.0.1"
    assert own_host({}) == own_host({"LMJ_INTERFACE": "none0"})


def test_orders() -> None:
    import asyncio

    from lmj_trainer.launch.agent_line import Orders

    changed = asyncio.Event()
    it = Orders(changed)
    it.take(Order(kind=CommandKind.VIEW, view=view(0, 1)))
    assert changed.is_set()
    assert it.take_view() == view(0, 1)
    assert (it.take_view(), it.broken(4), it.stops(4)) == (None, None, None)
    it.take(Order(kind=CommandKind.PAUSE, number=4))
    assert it.stops(4) is not None
    assert it.stops(5) is None
    it.take(Order(kind=CommandKind.LEAVE, number=4))
    assert it.broken(4) == "view 4 lost a member"
    it.take(Order(kind=CommandKind.VIEW, view=view(0, 1, number=6)))
    assert it.broken(5) == "view 6: for the test"
    assert it.broken(6) is None
    it.take(Order(kind=CommandKind.FOLLOWER))
    assert it.stops(6) is None
    it.take(Order(kind=CommandKind.DRAIN))
    assert it.stops(6) is not None
