"""Who is let in by whose relay before a view names both."""

import pytest
from tests.unit.operator.seen import observed, pod, worker

from lmj_api.cut import Cut
from lmj_api.protocol import Recut
from lmj_api.view import Member
from lmj_operator.plan import Action, DeletePod, Follow, FollowParts, LetIn
from lmj_operator.plan.introductions import with_introductions
from lmj_operator.plan.plan import Plan

RELAYED = f"tls://10.0.0.1:9463/41234#{'Q' * 43}"


def told(address: str | None, *actions: Action) -> tuple[Action, ...]:
    """What a plan of ``actions`` becomes where the worker of rank 0 is at ``address``."""
    seen = observed(pod(0, 1, worker(address=address)), pod(1, 1), pod(1, 2, worker()))
    return with_introductions(Plan(seen.status, "r", actions), seen).actions


def member(name: str) -> Member:
    return Member(rank=0, pod=name, incarnation=1, address=f"tls://10.0.0.2:9463/41234#{'U' * 43}")


def test_a_follower_is_told_to_let_its_source_in_when_that_is_told_of_it() -> None:
    follow, other = Follow("j-r0-1", member("j-r0-2")), DeletePod("j-r1-1", "r")
    assert told(RELAYED, other, follow) == (other, LetIn("j-r0-2", RELAYED, "j-r0-1"), follow)
    assert str(LetIn("j-r0-2", RELAYED, "j-r0-1")) == "have j-r0-2 let j-r0-1 in"


def test_so_do_all_that_follow_parts_of_it() -> None:
    follow = FollowParts("j-r0-1", Recut(cut=Cut(stages=2), followers=[member("j-r0-2"), member("j-r1-2")]))
    assert told(RELAYED, follow) == (LetIn("j-r0-2", RELAYED, "j-r0-1"), LetIn("j-r1-2", RELAYED, "j-r0-1"), follow)


@pytest.mark.parametrize(
    ("address", "action"),
    [
        ("uv://10.0.0.1:41234", Follow("j-r0-1", member("j-r0-2"))),
        (None, Follow("j-r0-1", member("j-r0-2"))),
        (RELAYED, Follow("j-r0-1", None)),
        (RELAYED, FollowParts("j-r0-1", None)),
        (RELAYED, Follow("j-r1-1", member("j-r0-2"))),
        (RELAYED, Follow("gone", member("j-r0-2"))),
        (RELAYED, DeletePod("j-r0-1", "r")),
    ],
)
def test_nobody_is_let_in_where_nobody_connects_or_there_is_no_relay(address: str | None, action: Action) -> None:
    assert told(address, action) == (action,)
