"""The kinds of objects that the operator reads and writes."""

from dataclasses import dataclass

from lmj_api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, as its address in the API names it."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, or (without ``name``) of all in ``namespace``."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *([name] if name else []), *([subresource] if subresource else [])])


JOBS = Resource(names.GROUP, names.VERSION, names.PLURAL)
PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
SERVICES = Resource("", "v1", "services")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
EVENTS = Resource("", "v1", "events")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
TOKEN_KEYS = Resource("", "openid", "jwks")
"""Not a kind, but counted as one: the public keys of the API server's tokens."""
