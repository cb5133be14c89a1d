"""How a pod of this machine is started."""

from pathlib import Path

import pytest

from lmj_api.status import JobStatus, Phase
from lmj_api.view import Member, Resume, View
from lmj_operator.backend.local.backend import trains_without
from lmj_operator.backend.local.pod import PodPlace, agent_command

VIEW = View(
    number=1,
    members=[Member(rank=1, pod="tiny-r1-1", incarnation=1, address="127.0.0.1:1")],
    resume=Resume(step=0),
    reason="all ranks are ready",
)


@pytest.mark.parametrize(
    ("phase", "view", "rank", "behind"),
    [
        (Phase.RUNNING, VIEW, 0, True),
        (Phase.RUNNING, VIEW, 1, False),
        (Phase.RECOVERING, VIEW, 0, False),
        (Phase.PENDING, None, 0, False),
        (Phase.RUNNING, VIEW, None, False),
    ],
)
def test_who_is_to_join_those_that_train(phase: Phase, view: View | None, rank: int | None, behind: bool) -> None:
    assert trains_without(JobStatus(phase=phase, view=view), rank) is behind


@pytest.mark.parametrize("behind", [True, False])
def test_it_starts_in_what_they_leave_over(tmp_path: Path, behind: bool) -> None:
    place = PodPlace("tiny-r0-1", 0, 1, tmp_path, tmp_path / "log", behind)
    command = agent_command(place, place.job_file, "-key")
    assert ("--behind" in command) is behind
    assert {"--trust=-key", place.uid} <= set(command), "a key may begin as an option does"


@pytest.mark.parametrize("relayed", [True, False])
def test_it_has_a_relay_where_the_job_says_so(tmp_path: Path, relayed: bool) -> None:
    place = PodPlace("tiny-r0-1", 0, 1, tmp_path, tmp_path / "log", relayed=relayed)
    command = agent_command(place, place.job_file, "key")
    assert (" --relay 0 --address 127.0.0.1 " in " ".join(command)) is relayed


def test_each_pod_has_an_identity_of_its_own(tmp_path: Path) -> None:
    first, second = (PodPlace("tiny-r0-1", 0, 1, tmp_path, tmp_path / "log") for _ in range(2))
    assert first.uid != second.uid
