"""What `helm test` runs in the operator's image, with the operator's account: is the resource served, is every right there."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 15


def call(path: str, body: object = None) -> dict:
    """The API server's answer to a GET, or to a POST of ``body``."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:  # noqa: S310
        return json.load(answer)


def rights(rules: list[dict], namespaces: list[str]) -> Iterator[dict]:
    """Each verb on each resource in each namespace; namespace "" is all of them."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name, _, subresource = resource.partition("/")
                for verb in rule["verbs"]:
                    for namespace in namespaces:
                        wanted = {"group": group, "resource": name, "verb": verb, "namespace": namespace}
                        yield {**wanted, "subresource": subresource}


def allowed(right: dict) -> bool:
    """Whether the account that asks has it."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": right}}
    return bool(call("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)["status"].get("allowed"))


def main() -> int:
    """0: all is there; 1: a line for each thing that is not."""
    try:
        served = [each["name"] for each in call("/apis/lmj.dev/v1alpha1")["resources"]]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        served = []
    wrong = []
    if "livemigrationjobs" not in served:
        wrong.append("lmj.dev/v1alpha1 livemigrationjobs is not served: install the CustomResourceDefinition (crds.enabled=true)")
    wanted = [
        *rights(json.loads(os.environ["CLUSTER_RULES"]), [""]),
        *rights(json.loads(os.environ["NAMESPACED_RULES"]), json.loads(os.environ["NAMESPACES"]) or [""]),
    ]
    for right in wanted:
        if not allowed(right):
            name = "/".join(part for part in (right["resource"], right["subresource"]) if part)
            where = f"namespace {right['namespace']}" if right["namespace"] else "the cluster"
            wrong.append(f"not allowed in {where}: {right['verb']} {name} {right['group']}".rstrip())
    print("\n".join(wrong) or f"livemigrationjobs are served and all {len(wanted)} rights are there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
