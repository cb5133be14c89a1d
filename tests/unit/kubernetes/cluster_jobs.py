"""Jobs, pods and an API server in memory, for the tests of the Kubernetes backend."""

import copy
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.api import CALL_SECONDS, LARGE_AT_ONCE, ApiError
from lmj_operator.backend.kubernetes.cluster_job import checked_job, read_job
from lmj_operator.backend.kubernetes.keys import Keys
from lmj_operator.backend.kubernetes.resources import Resource
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.signing_key import SigningKey
from lmj_operator.backend.turns import Turns
from lmj_operator.plan.observe.times import rfc3339

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
"""The operator's, always the same: its public half is in golden files."""
SETTINGS = Settings(trainer_image="registry.example/lmj-trainer:1", trust=(KEY.public,), namespace="lmj-system")
UID = "11111111-2222-3333-4444-555555555555"


class MemoryKeys(Keys):
    """The operator's keys, without a folder; the last one is the newest."""

    def __init__(self, *keys: SigningKey) -> None:
        self._keys = list(keys or (KEY,))

    def have(self, *keys: SigningKey) -> None:
        """These, and no others, from now on."""
        self._keys = list(keys)

    def _refresh(self) -> None:
        pass


def job_body(name: str = "tiny", **spec: Any) -> dict[str, Any]:
    """A job as the API server has it."""
    return {
        "apiVersion": "lmj.dev/v1alpha1",
        "kind": "LiveMigrationJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": UID,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {
            "pipeline": {"stages": 2, "microBatches": 2},
            "model": {"scratch": {"layers": 2}},
            "dataset": {"source": "data/reviews.csv", "text": ["review"], "label": "sentiment"},
            "training": {"batchSize": 4},
            "output": {"path": "runs/tiny"},
            "storage": {"output": {"size": "1Gi"}},
            **spec,
        },
    }


def cluster_job(body: dict[str, Any], settings: Settings) -> LiveMigrationJob:
    """The job in ``body``, ready to run in pods."""
    return checked_job(read_job(body), settings)


def job(**spec: Any) -> LiveMigrationJob:
    return cluster_job(job_body(**spec), SETTINGS)


NOT_OF_A_SCRIPT = ("pipeline", "model", "dataset", "training")


def script(**spec: Any) -> LiveMigrationJob:
    """A job of a script, as the API server has it, ready to run in pods."""
    body = job_body(strategy="Command", **{"command": {"args": ["train.py"]}, **spec})
    body["spec"] = {name: part for name, part in body["spec"].items() if name not in NOT_OF_A_SCRIPT}
    # As a server fills it in.
    body["spec"] |= {"pipeline": {"stages": 2, "microBatches": 4}, "training": {"epochs": 3}, "checkpoint": {"keep": 3}}
    return cluster_job(body, SETTINGS)


def pod_body(
    name: str = "tiny-r0-1", uid: str = "pod-1", owner: str = UID, trust: str = KEY.public, **status: Any
) -> dict[str, Any]:
    """A pod as the API server has it."""
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"lmj.dev/job": name.rsplit("-", 2)[0]},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    agent = {"name": "trainer", "command": ["agent", f"--trust={trust}"]}
    return {"metadata": metadata, "spec": {"nodeName": "node-1", "containers": [agent]}, "status": status}


def running(name: str = "tiny-r0-1", uid: str = "pod-1", ip: str = "127.0.0.1", **more: Any) -> dict[str, Any]:
    container = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}
    return pod_body(name, uid, phase="Running", podIP=ip, containerStatuses=[container], **more)


class MemoryApi:
    """Objects by kind and name; ``refuse`` answers the next calls of a verb on a kind with an error. Counts what was called."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.refuse: dict[tuple[str, str], list[ApiError]] = {}
        self.deletions: list[tuple[str, int | None]] = []
        self.version = 1
        self.deadlines: list[float] = []
        """Seconds that each apply had."""
        self.large = Turns(LARGE_AT_ONCE, LARGE_AT_ONCE)

    def _enter(self, verb: str, resource: Resource, name: str) -> tuple[str, str]:
        self.calls.append((verb, resource.plural, name))
        errors = self.refuse.get((verb, resource.plural))
        if errors:
            raise errors.pop(0)
        return resource.plural, name

    def _store(self, key: tuple[str, str], body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        body["metadata"].setdefault("uid", f"uid-{self.version}")
        body["metadata"].setdefault("creationTimestamp", rfc3339(time.time()))
        self.objects[key] = body
        return copy.deepcopy(body)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any] | None:
        key = self._enter("get", resource, name)
        return copy.deepcopy(self.objects.get(key))

    async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        key = self._enter("create", resource, body["metadata"]["name"])
        if key in self.objects:
            raise ApiError("create", "/", 409, "AlreadyExists", "already exists")
        return self._store(key, body)

    async def apply(
        self,
        resource: Resource,
        body: dict[str, Any],
        *,
        subresource: str | None = None,
        force: bool = False,
        metadata: bool = False,
        manager: str = "lmj",
        seconds: float = CALL_SECONDS,
    ) -> dict[str, Any]:
        self.deadlines.append(seconds)
        key = self._enter("patch", resource, body["metadata"]["name"])
        old = self.objects.get(key)
        wanted = body["metadata"].get("resourceVersion")
        if subresource is not None and old is None:
            raise ApiError("patch", "/", 404, "NotFound", "not found")
        if wanted is not None and old is not None and old["metadata"]["resourceVersion"] != wanted:
            raise ApiError("patch", "/", 409, "Conflict", "the object has been modified")
        merged = {**(old or body)["metadata"]}
        if merged.get("uid") != body["metadata"].get("uid", merged.get("uid")):
            raise ApiError("patch", "/", 409, "Conflict", "uid mismatch")
        if manager != "lmj":
            body = {**body, "status": {**(old or {}).get("status", {}), **body["status"]}}
        merged["labels"] = {**(merged.get("labels") or {}), **(body["metadata"].get("labels") or {})}
        stored = self._store(key, {**(old or {}), **body, "metadata": merged})
        return {"metadata": stored["metadata"]} if metadata else stored

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str, grace: int | None = None) -> bool:
        key = self._enter("delete", resource, name)
        self.deletions.append((name, grace))
        there = self.objects.get(key)
        if there is None or there["metadata"]["uid"] != uid:
            return False
        del self.objects[key]
        return True

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, name in self.objects if kind == plural)

    async def list(
        self, resource: Resource, namespace: str | None, query: dict[str, str], *, metadata: bool = False
    ) -> dict[str, Any]:
        self._enter("list", resource, "")
        field, _, uid = query["fieldSelector"].partition("=")
        assert field == "involvedObject.uid"
        events = [body for (kind, _), body in self.objects.items() if kind == resource.plural]
        return {"items": [copy.deepcopy(event) for event in events if event["involvedObject"]["uid"] == uid]}


def error(status: int, reason: str = "Refused", message: str = "no", took: float = 0.0) -> ApiError:
    return ApiError("create", "/api", status, reason, message, took=took)
