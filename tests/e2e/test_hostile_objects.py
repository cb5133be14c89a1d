"""Thousands of hostile jobs before a real API server and a real operator: it lives, each job says why it is as it is, and others go on."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Unavailable
from cluster.api import Api
from cluster.process import Process
from hostile.canary import LONGEST, Canary
from hostile.journal import Journal
from hostile.objects import case
from hostile.server import Server
from hostile.trial import BATCH, Trial

if TYPE_CHECKING:
    from operator_load.plane import Plane

pytestmark = pytest.mark.e2e

CHECKOUT = Path(__file__).parents[2]
HOSTILE = "hostile"
NODES = 10
CANARY_SECONDS = 3.0
"""A job of another tenant comes so often,"""
IN_TIME = 15.0
"""and has all of its pods within so long, alone in one,"""
CALLS = 8
"""and so many calls of the API server, which the hostile objects keep busy: one after another an operator makes for pods six."""
SEED = random.randrange(1 << 32) if os.environ.get("LMJ_EXPLORE") else 0
RESTARTS = 10
"""Times that the operator is killed and started again while a batch of them is there, at most."""


class Operator:
    """A real one, of all namespaces."""

    def __init__(self, plane: Plane) -> None:
        self._process = Process("operator", plane.folder)
        self._process.log.unlink(missing_ok=True)  # that of another test
        self._kubeconfig = plane.kubeconfig
        self.journal = Journal(self._process.log)

    def start(self) -> None:
        command = [sys.executable, "-m", "lmj_operator.cli.main", "operator", "--listen", "127.0.0.1:0", "--log-format", "json"]
        command += ["--trainer-image", "registry.invalid/lmj-trainer:1"]
        self._process.start(command, {"KUBECONFIG": str(self._kubeconfig)})

    def restart(self) -> None:
        """As where its machine is lost."""
        self._process.stop()
        self.start()

    def stop(self) -> None:
        self._process.stop()

    def check(self) -> None:
        """Raises ClusterError when it has ended."""
        self._process.check()


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    """An API server, and nodes that run nothing: pods of such jobs are not to run anywhere."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("needs root on Linux: the API server gets a network of its own")
    benchmarks = str(CHECKOUT / "benchmarks")
    sys.path.insert(0, benchmarks)
    try:
        from operator_load.plane import Plane, free_port

        with Plane(NODES) as made:
            made.furnish(HOSTILE)
            # They answer for every pod, so jobs that can be run are run.
            agents = Process("agents", made.folder)
            path = os.pathsep.join([benchmarks, str(CHECKOUT / "tests")])
            command = [sys.executable, "-m", "operator_load.agents", "--kubeconfig", made.admin, "--control", str(free_port())]
            agents.start(command, {"PYTHONPATH": path})
            try:
                yield made
                agents.check()
            finally:
                agents.stop()
    except Unavailable as reason:
        pytest.skip(f"no API server here: {reason}")
    finally:
        sys.path.remove(benchmarks)


@pytest.fixture
def operator(plane: Plane) -> Iterator[Operator]:
    running = Operator(plane)
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize(("count", "all_of_them"), [(60, False), pytest.param(10_000, True, marks=pytest.mark.slow)])
def test_the_operator_lives_each_job_says_why_and_others_get_their_pods(
    plane: Plane, operator: Operator, count: int, all_of_them: bool
) -> None:
    """``count`` of them, without those that are heavy for an API server unless ``all_of_them``."""
    from operator_load.plane import NAMESPACE

    api = Api(plane.admin)
    cases = [made for made in (case(number, SEED) for number in range(count)) if all_of_them or not made.heavy]
    batches = len(cases) // BATCH
    restarts = range(0, batches, max(1, batches // RESTARTS)) if batches > RESTARTS else (0,)

    async def go_through_all() -> tuple[Trial, Canary]:
        async with Server(api.server, api.token, api.tls) as server:
            canary = Canary(server, NAMESPACE, CANARY_SECONDS)
            trial = Trial(server, HOSTILE, operator.journal, operator.check)
            await trial.run(cases, canary, operator.restart, restarts)
            return trial, canary

    trial, canary = asyncio.run(go_through_all())
    outcome = trial.outcome
    slowest = sorted(canary.waited, key=lambda wait: -wait.seconds)
    print(f"seed {SEED}: {outcome}; the slowest canaries {slowest[:5]}")
    assert not outcome.wrong, f"seed {SEED}: {len(outcome.wrong)} of {len(cases)}:\n" + "\n".join(outcome.wrong[:10])
    assert len(canary.waited) >= 3, "it is too short to say anything"
    assert slowest[0].seconds < LONGEST, slowest[:10]
    late = [wait for wait in slowest if not wait.restarted and wait.seconds > IN_TIME + CALLS * wait.slowest]
    assert not late, late
    assert outcome.taken + outcome.refused == len(cases)
    assert outcome.taken > len(cases) / 2, "most of what is drawn comes as far as to the operator"
