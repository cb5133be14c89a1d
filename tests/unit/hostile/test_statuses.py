"""A stored status may be anybody's: whatever can be read of it, a pass that plans with it ends, and takes little memory."""

import os
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile.good import STATUS
from hostile.objects import status
from planned import job_spec
from tests.unit.operator.seen import pod, worker

from lmj_api.spec import JobSpec
from lmj_operator.backend.kubernetes.status_store import StatusUnreadable, read_status
from lmj_operator.plan import Observed
from lmj_operator.plan.planner import plan

if sys.platform != "linux":
    pytest.skip("the limit on memory is that of Linux", allow_module_level=True)

COUNT = 1_000
SEED = random.randrange(1 << 32) if os.environ.get("LMJ_EXPLORE") else 0
MORE = 1 << 30
"""Bytes of memory that all of them may take."""
SPECS = (job_spec(2), job_spec(2, dataParallel={"shards": 2, "replicas": 2}))
PODS = ((), (pod(0, 1, worker()), pod(1, 1, worker())))


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MORE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def planned(body: dict[str, Any], spec: JobSpec = SPECS[0]) -> None:
    for pods in PODS:
        plan(Observed("j", spec, read_status({"status": body}), pods), 1000.0)


def test_each_is_planned_with_or_cannot_be_read() -> None:
    read = 0
    for number in range(COUNT):
        body = status(random.Random(f"{SEED}/{number}"))
        try:
            planned(body, SPECS[number % 2])
        except StatusUnreadable:
            continue
        except Exception as error:
            error.add_note(f"number {number} of seed {SEED}: {body}")
            raise
        read += 1
    assert read > COUNT / 10


@pytest.mark.parametrize(
    "more",
    [
        {"wantedReplicas": 2**31},
        {"replicas": 2**31},
        {"stages": 2**31},
        {"ranks": [{"rank": 0, "stage": 2**31, "state": "Running"}]},
        {"ranks": [{"rank": 2**31, "state": "Running"}]},
        {"joins": [{"replica": 2**31}]},
        {"moves": [{"rank": -1, "serial": 1, "reason": "r", "since": 1.0}]},
        {"incidents": [{**STATUS["incidents"][0], "time": "yesterday"}]},
    ],
    ids=str,
)
def test_what_no_operator_can_have_written_is_not_read(more: dict[str, Any]) -> None:
    planned(STATUS)
    with pytest.raises(StatusUnreadable, match=f"status.{next(iter(more))}.*cannot be read"):
        planned({**STATUS, **more})


def test_so_many_moves_as_no_straggler_can_have_had_are_no_longer_rest_than_the_most() -> None:
    stragglers = [{"rank": 1, "pod": "x-r1-1", "moves": 2**53, "notBefore": 1e308}]
    planned({**STATUS, "stragglers": stragglers})


def test_a_table_of_more_ranks_than_there_are_stages_is_no_cut() -> None:
    planned({**STATUS, "ranks": [{"rank": rank, "state": "NoPod"} for rank in range(100)]})
