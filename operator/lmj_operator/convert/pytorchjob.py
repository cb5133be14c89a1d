"""``kubeflow.org/v1`` PyTorchJob."""

from typing import Final

from lmj_api.problems import show
from lmj_operator.convert.fields import Object, differing, mapping, number, text
from lmj_operator.convert.notes import ConvertError, Notes
from lmj_operator.convert.source import Source

API_VERSION: Final = "kubeflow.org/v1"
KIND: Final = "PyTorchJob"
_SPECS: Final = "spec.pytorchReplicaSpecs"
_RENDEZVOUS: Final = ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone")
_KNOWN: Final = frozenset({"pytorchReplicaSpecs", "elasticPolicy", "runPolicy", "nprocPerNode"})
_OF_ELASTIC: Final = frozenset({"minReplicas", "maxReplicas", "maxRestarts", "nProcPerNode", "metrics", *_RENDEZVOUS})
_OF_RUN: Final = frozenset(
    {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "suspend", "schedulingPolicy"}
)


def source(document: Object, notes: Notes) -> Source:
    """What the PyTorchJob ``document`` says. Raises ConvertError."""
    spec = mapping(document, "spec", "")
    _unknown(spec, _KNOWN, "spec", notes)
    specs = mapping(spec, "pytorchReplicaSpecs", "spec")
    kinds = [kind for kind in ("Master", "Worker") if kind in specs]
    for kind in specs:
        if kind not in kinds:
            raise ConvertError(f"{_SPECS}.{show(kind)}: a PyTorchJob has Master and Worker")
    counts = {kind: number(mapping(specs, kind, _SPECS), "replicas", f"{_SPECS}.{kind}") for kind in kinds}
    used = [kind for kind in kinds if counts[kind] != 0]
    if not used:
        raise ConvertError(f"{_SPECS}: no Master and no Worker: give it one")
    replicas = sum(1 if counts[kind] is None else counts[kind] or 0 for kind in used)
    pod = mapping(specs[used[0]], "template", f"{_SPECS}.{used[0]}")
    if len(used) > 1:
        places = differing(pod, mapping(specs["Worker"], "template", f"{_SPECS}.Worker"), "template")
        if places:
            notes.changed(f"{_SPECS}.Worker", f"differs from Master in {', '.join(places)}: Master's counts for all pods")
    policy = mapping(spec, "elasticPolicy", "spec")
    fields, backoff = _run_policy(mapping(spec, "runPolicy", "spec"), notes)
    fields |= _restart_policy([(kind, specs[kind]) for kind in used], notes)
    least, most, restarts = _elastic(policy, replicas, notes)
    if restarts is not None and backoff is not None:
        notes.changed(
            "spec.runPolicy.backoffLimit", f"recovery.maxRestarts counts all restarts: {restarts + backoff}, with maxRestarts"
        )
        restarts += backoff
    return Source(
        metadata=mapping(document, "metadata", ""),
        pod=pod,
        where=f"{_SPECS}.{used[0]}.template",
        container="pytorch",
        replicas=replicas,
        least=least,
        most=most,
        processes=_processes(spec, policy),
        restarts=backoff if restarts is None else restarts,
        entrypoint="the image's ENTRYPOINT",
        fields=fields,
    )


def _processes(spec: Object, policy: Object) -> str:
    of_policy = number(policy, "nProcPerNode", "spec.elasticPolicy", 1)
    if isinstance(spec.get("nprocPerNode"), int):
        return str(number(spec, "nprocPerNode", "spec", 1))
    return text(spec, "nprocPerNode", "spec") or (str(of_policy) if of_policy is not None else "auto")


def _elastic(policy: Object, replicas: int, notes: Notes) -> tuple[int | None, int | None, int | None]:
    """The fewest and the most pods, and restarts."""
    where = "spec.elasticPolicy"
    _unknown(policy, _OF_ELASTIC, where, notes)
    told = [key for key in _RENDEZVOUS if key in policy]
    if told:
        notes.dropped(f"{where}.{', '.join(told)}", "not needed: the ranks of a view are told where the first of them is")
    if policy.get("metrics"):
        notes.dropped(f"{where}.metrics", "make a HorizontalPodAutoscaler that scales the LiveMigrationJob")
    least, most = number(policy, "minReplicas", where, 1), number(policy, "maxReplicas", where, 1)
    if least is not None and least > replicas:
        notes.changed(f"{where}.minReplicas", f"{least} is more than the {replicas} replicas: it is {replicas}")
        least = replicas
    if most is not None and most < replicas:
        notes.changed(f"{where}.maxReplicas", f"{most} is less than the {replicas} replicas: it is {replicas}")
        most = replicas
    return least, most, number(policy, "maxRestarts", where)


def _run_policy(policy: Object, notes: Notes) -> tuple[Object, int | None]:
    """The fields that are the same here, and the restarts."""
    where = "spec.runPolicy"
    _unknown(policy, _OF_RUN, where, notes)
    for key in mapping(policy, "schedulingPolicy", where):
        notes.dropped(
            f"{where}.schedulingPolicy.{key}", "pods are scheduled one by one; a queue or a gang is up to the cluster's scheduler"
        )
    fields: Object = {"cleanPodPolicy": policy.get("cleanPodPolicy") or "None"}
    fields |= {key: policy[key] for key in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "suspend") if key in policy}
    return fields, number(policy, "backoffLimit", where)


def _restart_policy(replicas: list[tuple[str, Object]], notes: Notes) -> Object:
    """What follows from how containers are restarted."""
    found = {(text(spec, "restartPolicy", f"{_SPECS}.{kind}") or "OnFailure"): kind for kind, spec in reversed(replicas)}
    if "ExitCode" in found:
        rules = [{"exitCodes": list(range(1, 65)), "action": "Fail"}, {"exitCodes": list(range(65, 128)), "action": "Fail"}]
        notes.changed(
            f"{_SPECS}.{found['ExitCode']}.restartPolicy",
            "ExitCode: rules of recovery say that exit codes up to 127 fail the job",
        )
        return {"recovery": {"rules": rules}}
    if "Never" in found:
        notes.changed(
            f"{_SPECS}.{found['Never']}.restartPolicy",
            "Never: a worker that fails is restarted here; recovery: {maxRestarts: 0} has the job fail at once",
        )
    return {}


def _unknown(value: Object, known: frozenset[str], where: str, notes: Notes) -> None:
    for key in value:
        if key not in known:
            notes.dropped(f"{where}.{key}", "left out")
