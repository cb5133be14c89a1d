"""The pod of a rank."""

import hashlib
import json
from typing import Any

from lmj_api import canary
from lmj_api.layout import Layout
from lmj_api.names import API_VERSION, KIND, pod_name, standby_name
from lmj_api.pod_token import AUDIENCE
from lmj_api.problems import SpecError
from lmj_api.spec import Encryption, LiveMigrationJob, PolicyMode, Volume
from lmj_api.tokens import STORE_FOLDER, STORE_SECRET, references
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.build.affinity import placed
from lmj_operator.backend.kubernetes.build.grace import agent_seconds, grace_seconds
from lmj_operator.backend.kubernetes.build.kept_template import node_selector_of, template_of, with_parsed_template
from lmj_operator.backend.kubernetes.build.spreading import affinity, constraints
from lmj_operator.backend.kubernetes.build.template import merge
from lmj_operator.backend.kubernetes.build.template_check import check_template
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.trust import token_options, trust_options

Object = dict[str, Any]

_RUN_SIZE = "1Mi"
"""Of the agent's own folder: one file of some hundred bytes, and for a moment the next beside it."""
_SHARED_MEMORY, _NO_SHARED_MEMORY = "8Gi", "64Mi"
"""Of ``/dev/shm``, where code of the user's own may share tensors between processes: a data loader that leaks in a pod without a limit is not
to take all of the node's memory. And where it does not: what container runtimes give every container."""
_RUN = "/run/lmj"
_JOB = "/etc/lmj/job"
_STORE = "/etc/lmj/store"
_TOKEN_FOLDER, _TOKEN = "/etc/lmj/token", "token"
_TOKEN_SECONDS = 3600
"""After which a token ends; the kubelet renews it before. Nobody looks at it, but the API server makes none without an end."""


def owner(job: LiveMigrationJob) -> Object:
    """The reference by which an object goes when the job does."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def build_pod(
    job: LiveMigrationJob,
    settings: Settings,
    rank: int | None,
    serial: int,
    avoid: tuple[str, ...] = (),
    node: str | None = None,
) -> Object:
    """The ``serial``-th pod of ``rank``, or (None) the ``serial``-th standby, on none of the nodes ``avoid``, on ``node`` if that is one.

    Raises SpecError when the job cannot be run in pods: no image, no shared volume, a wrong template.
    """
    job = with_parsed_template(job)
    template = template_of(job)
    check_template(template)
    base = {"metadata": {"labels": {}, "annotations": {}}, "spec": _spec(job, settings, rank, serial)}
    pod = merge(base, template)
    own = {**labels.job_labels(job), **labels.of_pod(_name(job, rank, serial), job.spec.topology)}
    carried = job.model_copy(update={"spec": job.spec.model_copy(update={"template": None}), "status": None})
    pod["metadata"] = {
        "name": _name(job, rank, serial),
        "namespace": job.metadata.namespace,
        "labels": {**(pod["metadata"].get("labels") or {}), **own},
        "annotations": {
            "kubectl.kubernetes.io/default-container": labels.CONTAINER,
            **(pod["metadata"].get("annotations") or {}),
            labels.SPEC: carried.to_json(),
        },
        "ownerReferences": [owner(job)],
    }
    # The trainer's container first: it is the one that kubectl logs shows, and it says nothing of another's place.
    pod["spec"]["containers"].sort(key=lambda container: container["name"] != labels.CONTAINER)
    trainer = pod["spec"]["containers"][0]
    if not trainer.get("image"):
        raise SpecError(
            "no trainer image: start the operator with --trainer-image, or set spec.template.spec.containers[trainer].image"
        )
    _check_places(job, pod["spec"], trainer)
    if job.spec.network.policy is PolicyMode.REQUIRED and _on_node_network(pod["spec"]):
        raise SpecError(
            "spec.network.policy: Required, and no NetworkPolicy holds for pods on their node's network:"
            " leave hostNetwork out of spec.template, or set Preferred"
        )
    pod["metadata"]["annotations"][labels.DIGEST] = _digest(pod)
    # Behind the digest: that a node is avoided by now, or another key the newest, is no reason to make a pod again that waits already.
    trainer["command"] += trust_options(settings.trust)
    pod["spec"] = placed(pod["spec"], avoid, node)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _digest(pod: Object) -> str:
    metadata = pod["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != labels.SPEC}
    text = json.dumps([metadata["labels"], annotations, pod["spec"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(job: LiveMigrationJob, rank: int | None, serial: int) -> str:
    name = job.metadata.name
    return standby_name(name, serial) if rank is None else pod_name(name, rank, serial)


def node_selector(job: LiveMigrationJob, rank: int | None) -> dict[str, str]:
    """Labels that the node of ``rank``'s pod, or (None) of a standby, must have when the pod is made."""
    selector: dict[str, str] = merge({"it": _selector(job, rank)}, {"it": node_selector_of(job)}).get("it", {})
    return selector


def _selector(job: LiveMigrationJob, rank: int | None) -> dict[str, str]:
    selector = {**job.spec.placement.node_selector}
    if rank is not None:
        stage = job.spec.topology.stage(rank)
        for placed in job.spec.placement.stages:
            if placed.stage == stage:
                selector.update(placed.node_selector)
    return selector


def _spec(job: LiveMigrationJob, settings: Settings, rank: int | None, serial: int) -> Object:
    name, selector = _name(job, rank, serial), _selector(job, rank)
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A name for people, through the headless Service; nothing in the system looks it up.
        "hostname": name,
        "subdomain": labels.trainers(job),
        "terminationGracePeriodSeconds": grace_seconds(job, settings),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            # A checkpoint volume may hold many files: do not walk it for each pod.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, settings, rank, name)],
        "volumes": _volumes(job),
    }
    if selector:
        spec["nodeSelector"] = selector
    if rank is not None:
        spec["affinity"] = affinity(job, rank)
    if spread := constraints(job, rank):
        spec["topologySpreadConstraints"] = spread
    return spec


def _container(job: LiveMigrationJob, settings: Settings, rank: int | None, name: str) -> Object:
    command = ["python", "-m", "lmj_trainer", "agent", "--job", f"{_JOB}/job.json"]
    command += ["--standby"] if rank is None else ["--rank", str(rank)]
    command += ["--pod", name]
    command += ["--dir", _RUN, "--listen", f"0.0.0.0:{labels.AGENT_PORT}", "--address", "$(POD_IP)"]
    command += ["--uid", "$(POD_UID)", "--grace", str(agent_seconds(job, settings))]
    ports = [{"name": "agent", "containerPort": labels.AGENT_PORT, "protocol": "TCP"}]
    encrypted = _encrypted(job)
    if encrypted:
        command += ["--relay", str(labels.RELAY_PORT), *token_options(f"{_TOKEN_FOLDER}/{_TOKEN}")]
        ports.append({"name": "relay", "containerPort": labels.RELAY_PORT, "protocol": "TCP"})
    container: Object = {
        "name": labels.CONTAINER,
        "command": command,
        "workingDir": data_folder(job),
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            *_canary(job),
            *_store(job),
            *_tokens(job, rank),
        ],
        "ports": ports,
        # The agent's own health: it answers while its worker computes, and does not when its event loop is stuck.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "agent", **({"scheme": "HTTPS"} if encrypted else {})},
            "initialDelaySeconds": 30,
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The last lines of a failed agent become the message that status shows.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job),
    }
    if settings.trainer_image is not None:
        container["image"] = settings.trainer_image
        if settings.image_pull_policy is not None:
            container["imagePullPolicy"] = settings.image_pull_policy
    return container


def _encrypted(job: LiveMigrationJob) -> bool:
    return job.spec.network.encryption is Encryption.REQUIRED


def _mounts(job: LiveMigrationJob) -> list[Object]:
    mounts: list[Object] = [
        {"name": "job", "mountPath": _JOB, "readOnly": True},
        {"name": "run", "mountPath": _RUN},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of this pod
        {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108 - memory of this pod
    ]
    if _encrypted(job):
        mounts.append({"name": "token", "mountPath": _TOKEN_FOLDER, "readOnly": True})
    if job.spec.storage.output is not None or _alone(job):
        mounts.append({"name": "output", "mountPath": labels.OUTPUT})
    if job.spec.checkpoint.secret_name is not None:
        mounts.append({"name": "store-keys", "mountPath": _STORE, "readOnly": True})
    if job.spec.storage.data is not None:
        mounts.append({"name": "data", "mountPath": labels.DATA, "readOnly": True})
    return mounts


def _canary(job: LiveMigrationJob) -> list[Object]:
    """Where the agent is to listen although the job's NetworkPolicy lets nobody but its ranks in. On a node's own network no policy holds."""
    if _on_node_network(template_of(job).get("spec") or {}):
        return []
    return [{"name": canary.VARIABLE, "value": str(canary.PORT)}]


def _on_node_network(spec: Object) -> bool:
    return bool(spec.get("hostNetwork"))


def _store(job: LiveMigrationJob) -> list[Object]:
    """Where the keys of the Secret are that leads to object storage: each rank writes a part of a checkpoint."""
    if (secret := job.spec.checkpoint.secret_name) is None:
        return []
    return [{"name": STORE_FOLDER, "value": _STORE}, {"name": STORE_SECRET, "value": secret}]


def _tokens(job: LiveMigrationJob, rank: int | None) -> list[Object]:
    """Credentials that the job refers to, for pods that may lead a view: those of stage 0, and standbys."""
    if rank is not None and job.spec.topology.stage(rank) != 0:
        return []
    # A Secret that is not there is told of by who lacks it; training does without.
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key, "optional": True}}}
        for name, token in references(job.spec.output).items()
    ]


def data_folder(job: LiveMigrationJob) -> str:
    """The folder that relative dataset and model paths mean."""
    return labels.DATA if job.spec.storage.data is not None else labels.EXAMPLES


def _volumes(job: LiveMigrationJob) -> list[Object]:
    storage = job.spec.storage
    volumes: list[Object] = [
        {
            "name": "job",
            "downwardAPI": {
                "items": [{"path": "job.json", "fieldRef": {"fieldPath": f"metadata.annotations['{labels.SPEC}']"}}],
                "defaultMode": 0o444,
            },
        },
        {"name": "run", "emptyDir": {"sizeLimit": _RUN_SIZE}},
        # Without a limit: a model or rows on their way from the hub, and what a script writes, are as large as they are, and a pod that goes
        # beyond is evicted. The container's limit of ephemeral storage, which the template sets or a LimitRange, counts for it too.
        {"name": "tmp", "emptyDir": {}},
        {"name": "dshm", "emptyDir": {"medium": "Memory", **_shared_memory(job)}},
    ]
    if _encrypted(job):
        # It says which pod this is, to the operator alone: the API server takes it for no other purpose.
        token = {"audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": _TOKEN}
        volumes.append({"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}})
    if (secret := job.spec.checkpoint.secret_name) is not None:
        # As files, and the whole folder, because these are replaced when the Secret changes, which variables and single files are not. It
        # must be there: a pod waits for it, and says so.
        volumes.append({"name": "store-keys", "secret": {"secretName": secret, "defaultMode": 0o440}})
    if storage.output is not None:
        volumes.append({"name": "output", "persistentVolumeClaim": {"claimName": _claim(job, "output", storage.output)}})
    elif _alone(job):
        # The same: checkpoints and the model, as large as the job makes them.
        volumes.append({"name": "output", "emptyDir": {}})
    if storage.data is not None:
        claim = {"claimName": _claim(job, "data", storage.data), "readOnly": True}
        volumes.append({"name": "data", "persistentVolumeClaim": claim})
    return volumes


def _alone(job: LiveMigrationJob) -> bool:
    """Whether a pod's own folder will do for its output: nobody else writes, or all that counts lies in object storage."""
    return job.spec.world_size == 1 or Layout.of(job.spec).results is not None


def _shared_memory(job: LiveMigrationJob) -> dict[str, str]:
    """The most that a pod's processes may put into shared memory, which counts as memory of the container. Nothing of ours is there: state is
    memory of the agent's, and tensors go through sockets.

    Where the template limits the container's memory, that counts for code of the user's own too.
    """
    if job.spec.command is None and job.spec.model.python is None:
        return {"sizeLimit": _NO_SHARED_MEMORY}
    containers = (template_of(job).get("spec") or {}).get("containers") or []
    trainer: Object = next((container for container in containers if container["name"] == labels.CONTAINER), {})
    limits = (trainer.get("resources") or {}).get("limits") or {}
    return {} if "memory" in limits else {"sizeLimit": _SHARED_MEMORY}


def _claim(job: LiveMigrationJob, volume: str, wanted: Volume) -> str:
    return wanted.claim_name or labels.claim_name(job, volume)


def _check_places(job: LiveMigrationJob, spec: Object, trainer: Object) -> None:
    """Results and checkpoints lie on volumes that can be written, and that all ranks share when there are several."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    layout = Layout.of(job.spec)
    saved = [("command.checkpoints", layout.script_checkpoints)] if layout.script_checkpoints is not None else []
    own = [("checkpoint.path", layout.checkpoints)] if layout.bucket is None else []
    output = "output.path" if layout.results is None else "output.scratch"
    for field, path in ((output, layout.output), *own, *saved):
        mounts = [m for m in trainer.get("volumeMounts", []) if path.is_relative_to(m["mountPath"])]
        mount = max(mounts, key=lambda m: len(m["mountPath"]), default=None)
        if mount is None or mount.get("readOnly"):
            if job.spec.storage.output is None and path.is_relative_to(labels.OUTPUT):
                raise SpecError(
                    f"spec.storage.output: missing; {job.spec.world_size} ranks share their checkpoints: give it a size, as in "
                    "storage: {output: {size: 10Gi}}, or the claimName of a claim"
                )
            raise SpecError(
                f"spec.{field}: {path} is on no volume that the pods can write; make it relative (it lies below /output then)"
            )
        if not _alone(job) and "emptyDir" in volumes.get(mount["name"], {}):
            raise SpecError(
                f"spec.{field}: {path} is on {mount['mountPath']}, a volume of each pod alone; all ranks must share it: "
                "make it relative, and set spec.storage.output"
            )
