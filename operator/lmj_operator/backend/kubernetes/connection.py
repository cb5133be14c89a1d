"""Which cluster: that of a kubeconfig, or the one that this process is in a pod of."""

import os
from pathlib import Path

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoCluster(Exception):  # noqa: N818 - it names what is the matter
    """No cluster is known here; the text says why, in one line."""


async def find(made: Configuration | None = None, kubeconfig: str | None = None, context: str | None = None) -> str:
    """Have ``made`` (None: the default of all clients) lead to a cluster, and return the namespace that is usual there.

    That of ``kubeconfig`` or ``context``, else of KUBECONFIG, else the one that this pod is in, else that of the user's own
    configuration. Raises :class:`NoCluster`.
    """
    # The client's library looks at the environment when it is imported, and never again.
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG") or None
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and kubeconfig is None and context is None:
            config.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]
            return _own_namespace()
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=made)  # type: ignore[no-untyped-call]
        contexts, current = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise NoCluster(f"no cluster: {' '.join(str(error).split())}; set KUBECONFIG") from error
    used = current if context is None else next(known for known in contexts if known["name"] == context)
    return str(used["context"].get("namespace") or "default")


def _own_namespace() -> str:
    """Of the pod that this is."""
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.is_file() else "default"
