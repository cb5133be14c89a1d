"""What is done to a job on a cluster for each kind of fault, and how it is put right again."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from clocks import Clocks
from cluster import Cluster
from cluster.api import ApiError
from cluster_fault_plan import Kind
from cluster_processes import agents, fill, send, worker_of
from hub import Hub
from operator_jobs import ClusterJob, OperatorProcess, wait_for
from s3_server import Restartable

OVER_SECONDS = 120.0
"""A fault that is not over by then is one too many."""
HOUR = 3600
CHILDREN = "service,networkpolicy,poddisruptionbudget"


class Injector:
    """Does things to a running job of two ranks. The name of the job must be one that no other on this machine has."""

    def __init__(
        self,
        own: Cluster,
        job: ClusterJob,
        operator: OperatorProcess,
        output: Path,
        clocks: Clocks,
        hub: Hub,
        storage: Restartable | None = None,
    ) -> None:
        """``output``: the job's folder, as this machine sees it. ``clocks``: ``operator``, and one by each node's name. ``hub``: of the
        job's model. ``storage``: where its checkpoints are; None: on a disk."""
        self.own, self.job, self.operator, self.output, self.clocks, self.hub = own, job, operator, output, clocks, hub
        self.storage = storage
        self._requests = 0
        self._repairs: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def inject(self, kind: Kind, rank: int, strength: float) -> None:
        """Do it, and see to it that what goes by itself is over some time. ``strength``: from 0 to 1."""
        {
            Kind.WORKER: self._worker,
            Kind.HANG: self._hang,
            Kind.STOP: self._stop,
            Kind.AGENT: self._agent,
            Kind.AGENT_STOP: self._agent_stop,
            Kind.DELETED: self._deleted,
            Kind.ALL_DELETED: self._all_deleted,
            Kind.EVICTED: self._evicted,
            Kind.CHILDREN: self._children,
            Kind.SUSPENDED: self._suspended,
            Kind.POWER: self._power,
            Kind.PARTITION: self._partition,
            Kind.MUTE: self._mute,
            Kind.DEAF: self._deaf,
            Kind.PARTED: self._parted,
            Kind.OPERATOR: self._operator,
            Kind.SECOND_OPERATOR: self._second_operator,
            Kind.STALE_OPERATOR: self._stale_operator,
            Kind.OPERATOR_CLOCK: self._operator_clock,
            Kind.NODE_CLOCK: self._node_clock,
            Kind.CONTROL_PLANE: self._control_plane,
            Kind.DISK: self._disk,
            Kind.OUTPUT: self._read_only,
            Kind.STORE: self._store,
            Kind.HUB: self._hub,
            Kind.MOVE: self._move,
            Kind.SCALED: self._scaled,
        }[kind](rank, strength)

    def check(self) -> None:
        """Raise what a repair raised."""
        if self._failed:
            raise self._failed[0]

    def repaired(self) -> None:
        """Wait for all that was to be over some time. Raises what a repair raised."""
        for thread in self._repairs:
            thread.join(240)
            assert not thread.is_alive(), "what was taken away is not back"
        self._repairs.clear()
        self.check()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _worker(self, rank: int, strength: float) -> None:
        send(self._worker_pid(rank), signal.SIGKILL)

    def _hang(self, rank: int, strength: float) -> None:
        send(self._worker_pid(rank), signal.SIGSTOP)

    def _stop(self, rank: int, strength: float) -> None:
        pid = self._worker_pid(rank)
        send(pid, signal.SIGSTOP)
        self._later(0.2 + 2.5 * strength, lambda: send(pid, signal.SIGCONT))

    def _agent(self, rank: int, strength: float) -> None:
        send(self._agent_pid(rank), signal.SIGKILL)

    def _agent_stop(self, rank: int, strength: float) -> None:
        pid = self._agent_pid(rank)
        send(pid, signal.SIGSTOP)
        self._later(0.2 + 8 * strength, lambda: send(pid, signal.SIGCONT))

    # --- objects ------------------------------------------------------------------------------------------------------

    def _deleted(self, rank: int, strength: float) -> None:
        self._delete_by_force(self._pod(rank))

    def _all_deleted(self, rank: int, strength: float) -> None:
        for pod in self.job.pods():
            self._delete_by_force(pod)

    def _evicted(self, rank: int, strength: float) -> None:
        """As ``kubectl drain`` does it: again while the budget refuses."""

        def evicted() -> bool:
            pod = self._pod(rank)
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.job.namespace}}
            try:
                self.own.api.call("POST", f"{self._pods}/{pod}/eviction", body)
            except ApiError as error:
                if error.status not in (404, 429):
                    raise
                return False
            return True

        wait_for(f"the eviction of rank {rank}", evicted, self.job.describe, OVER_SECONDS)

    def _children(self, rank: int, strength: float) -> None:
        def uids() -> dict[str, str]:
            found = json.loads(self._kubectl("get", CHILDREN, "-l", f"lmj.dev/job={self.job.name}", "-o", "json"))["items"]
            return {f"{child['kind']} {child['metadata']['name']}": child["metadata"]["uid"] for child in found}

        before, pod = uids(), self._pod(rank)
        self._kubectl("delete", CHILDREN, "-l", f"lmj.dev/job={self.job.name}", "--wait=false")
        with suppress(subprocess.CalledProcessError):  # the pod is gone already: another fault took it
            self._kubectl("label", "pod", pod, "lmj.dev/job-")

        def back() -> bool:
            now = uids()
            labelled = [p["metadata"]["labels"].get("lmj.dev/job") for p in self.job.get("pods")["items"]]
            there = now.keys() == before.keys() and not set(now.values()) & set(before.values())
            return there and set(labelled) == {self.job.name}

        wait_for(f"{', '.join(before)} and the label of {pod}", back, self.job.describe, OVER_SECONDS)

    def _suspended(self, rank: int, strength: float) -> None:
        self._worker(rank, strength)
        time.sleep(0.5 * strength)
        self._suspend(wanted=True)
        self.job.wait_for_phase("Suspended", seconds=OVER_SECONDS)
        self._suspend(wanted=False)

    def _move(self, rank: int, strength: float) -> None:
        self._requests += 1
        request = f"lmj.dev/migrate={rank} {self._requests}"
        self._kubectl("annotate", "lmj", self.job.name, "--overwrite", request)

    def _scaled(self, rank: int, strength: float) -> None:
        """Fewer or more, until they train: what is done to ranks 0 and 1 needs two."""
        for replicas in ((1, 3, 4)[int(3 * strength) % 3], 2):
            self._kubectl("scale", f"lmj/{self.job.name}", f"--replicas={replicas}")
            wait_for(f"{replicas} replicas", lambda n=replicas: self._status()["replicas"] == n, self.job.describe, OVER_SECONDS)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _power(self, rank: int, strength: float) -> None:
        node = self._node(rank)
        self.own.power_cut(node)
        self._later(2 + 4 * strength, lambda: self.own.power_on(node, 180))

    def _partition(self, rank: int, strength: float) -> None:
        node = self._node(rank)
        self.own.link_down(node)
        self._later(0.5 + 6 * strength, lambda: self.own.link_up(node))

    def _mute(self, rank: int, strength: float) -> None:
        node = self._node(rank)
        self.own.mute(node)
        self._later(0.5 + 6 * strength, lambda: self.own.heal(node))

    def _deaf(self, rank: int, strength: float) -> None:
        node = self._node(rank)
        self.own.deafen(node)
        self._later(0.5 + 6 * strength, lambda: self.own.heal(node))

    def _parted(self, rank: int, strength: float) -> None:
        """For longer than a few views take: then one of the two ranks has to be elsewhere."""
        node, peer = self._node(rank), self._node(1 - rank)
        if node == peer:
            peer = next(name for name in self.own.node_names() if name != node)
        self.own.part(node, peer)
        self._later(1 + 40 * strength, lambda: self.own.heal(node))

    def _node_clock(self, rank: int, strength: float) -> None:
        node = self._node(rank)
        self.clocks.set(node, round((2 * strength - 1) * HOUR))
        self._later(1 + 5 * strength, lambda: self.clocks.set(node))

    # --- operators and what they talk to ------------------------------------------------------------------------------

    def _operator(self, rank: int, strength: float) -> None:
        self.operator.kill()
        time.sleep(strength)
        self.operator.start()

    def _second_operator(self, rank: int, strength: float) -> None:
        """Both fix a dead worker."""
        second = self.operator.twin()
        second.start()
        try:
            time.sleep(2 + 4 * strength)  # it takes two or three to read what there is
            self._worker(rank, strength)
            time.sleep(2)
        finally:
            second.kill()

    def _stale_operator(self, rank: int, strength: float) -> None:
        """What the stopped one knows is old when it goes on."""
        second = self.operator.twin()
        self.operator.send(signal.SIGSTOP)
        try:
            second.start()
            self._worker(rank, strength)
            time.sleep(3 + 4 * strength)
            self.operator.send(signal.SIGCONT)
            time.sleep(1)
        finally:
            self.operator.send(signal.SIGCONT)
            second.kill()

    def _operator_clock(self, rank: int, strength: float) -> None:
        self.clocks.set("operator", HOUR)
        try:
            self._worker(rank, strength)
            time.sleep(0.5 + 2 * strength)
        finally:
            self.clocks.set("operator")

    def _control_plane(self, rank: int, strength: float) -> None:
        pid = self._worker_pid(rank)
        for component in ("apiserver", "etcd"):
            self.own.stop(component)
        try:
            send(pid, signal.SIGKILL)
            time.sleep(1 + 5 * strength)
        finally:
            for component in ("etcd", "apiserver"):
                self.own.start(component)

    # --- storage ------------------------------------------------------------------------------------------------------

    def _disk(self, rank: int, strength: float) -> None:
        filler = self.own.small_disk / "filler"
        fill(filler)
        self._later(0.5 + 3 * strength, lambda: filler.unlink(missing_ok=True))

    def _store(self, rank: int, strength: float) -> None:
        """What the worker's successor wants of a checkpoint, it cannot have either."""
        assert self.storage is not None
        self.storage.stop()
        self._worker(rank, strength)
        self._later(0.5 + 10 * strength, self.storage.start)

    def _hub(self, rank: int, strength: float) -> None:
        self.hub.always = 429 if strength < 0.5 else 503
        self._delete_by_force(self._pod(rank))

        def back() -> None:
            self.hub.always = None

        self._later(1 + 10 * strength, back)

    def _read_only(self, rank: int, strength: float) -> None:
        """Nothing in the output's folder can be made, changed or removed: as on a volume that the kernel has made read-only."""
        self._immutable("+i")
        self._later(0.5 + 6 * strength, lambda: self._immutable("-i"))

    def _immutable(self, flag: str) -> None:
        # Of files that go while it looks it complains.
        subprocess.run(["chattr", "-f", "-R", flag, str(self.output)], check=False, timeout=60)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        def run() -> None:
            time.sleep(seconds)
            try:
                what()
            except BaseException as error:  # noqa: BLE001
                self._failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._repairs.append(thread)

    def _suspend(self, *, wanted: bool) -> None:
        self._kubectl("patch", "lmj", self.job.name, "--type=merge", "-p", json.dumps({"spec": {"suspend": wanted}}))

    def _delete_by_force(self, pod: str) -> None:
        body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        with suppress(ApiError):  # it is gone already: two at once
            self.own.api.call("DELETE", f"{self._pods}/{pod}", body)

    def _kubectl(self, *arguments: str) -> str:
        return self.job.kubectl(*arguments, "-n", self.job.namespace)

    def _status(self) -> dict[str, Any]:
        path = f"/apis/lmj.dev/v1alpha1/namespaces/{self.job.namespace}/livemigrationjobs/{self.job.name}"
        return dict(self.own.api.get(path).get("status") or {})

    def _pod(self, rank: int) -> str:
        return str(self._status()["ranks"][rank]["pod"])

    def _node(self, rank: int) -> str:
        found: list[str] = []

        def known() -> bool:
            with suppress(ApiError):
                node = self.own.api.get(f"{self._pods}/{self._pod(rank)}")["spec"].get("nodeName")
                found.extend([node] if node else [])
            return bool(found)

        wait_for(f"the node of rank {rank}", known, self.job.describe, OVER_SECONDS)
        return found[0]

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.job.namespace}/pods"

    def _agent_pid(self, rank: int) -> int | None:
        return agents(self.job.name).get(self._pod(rank))

    def _worker_pid(self, rank: int) -> int | None:
        agent = self._agent_pid(rank)
        return None if agent is None else worker_of(agent)
