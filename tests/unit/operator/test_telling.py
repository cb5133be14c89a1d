"""What carries out an action at the agent of its pod."""

from typing import Any

from planned import view_of_one

from lmj_api.view import View
from lmj_operator.backend.telling import Telling
from lmj_operator.plan import PutView


def view(number: int) -> View:
    return view_of_one(number)


class Agent:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    async def put_view(self, view: View, body: str) -> Any:
        self.bodies.append(body)


async def test_a_view_is_written_once_for_all_who_are_told_it() -> None:
    telling, agent, first, second = Telling(), Agent(), view(1), view(2)
    for told in (first, first, second, second, first):
        await telling.call_of(PutView("p", told))(agent)  # type: ignore[arg-type]
    assert agent.bodies == [v.to_json() for v in (first, first, second, second, first)]
    assert agent.bodies[0] is agent.bodies[1]
    assert agent.bodies[2] is agent.bodies[3]
