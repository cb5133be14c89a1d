"""Keys, certificates, tokens and kubeconfig files of one cluster."""

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.process import run

ADMIN = "admin"
CONTROLLER_MANAGER = "controller-manager"
DNS = "dns"
PROXY = "proxy"
SCHEDULER = "scheduler"

_USERS = {
    ADMIN: ("admin", "system:masters"),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", ""),
    DNS: ("dns", "system:masters"),
    PROXY: ("system:kube-proxy", ""),
    SCHEDULER: ("system:kube-scheduler", ""),
}
"""Component: its user name and groups; Kubernetes' built-in roles are bound to these names."""


@dataclass(frozen=True)
class Pki:
    """The folder they are in. ``server`` is the API server's address as nodes, pods and this machine reach it."""

    folder: Path
    server: str

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def make(self, addresses: Sequence[str], nodes: Sequence[str]) -> None:
        """Make what is not there yet; ``addresses`` (IPs) are what the API server's certificate is for."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tokens = self.folder / "tokens.csv"
        if tokens.exists():  # written last
            return
        authority: list[str | Path] = [
            *_KEY,
            "-x509",
            "-keyout",
            self.folder / "ca.key",
            "-out",
            self.ca,
            "-days",
            "3650",
            "-subj",
            "/CN=lmj-test-cluster",
        ]
        run(["openssl", "req", *authority])
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        alternatives = ",".join([*(f"IP:{address}" for address in addresses), *(f"DNS:{name}" for name in names)])
        self._issue("apiserver", "/CN=kube-apiserver", f"subjectAltName={alternatives}")
        self._issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "extendedKeyUsage=clientAuth")
        run(["openssl", "genrsa", "-out", self.folder / "service-accounts.key", "2048"])
        users = {**_USERS, **{node: (f"system:node:{node}", "system:nodes") for node in nodes}}
        lines = []
        for component, (user, groups) in users.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{user},{component},"{groups}"' if groups else f"{token},{user},{component}")
            write_kubeconfig(self.kubeconfig(component), self.server, token, self.ca)
        tokens.write_text("\n".join(lines) + "\n")

    def kubeconfig(self, component: str) -> Path:
        """Of a component or a node."""
        return self.folder / f"{component}.kubeconfig"

    def _issue(self, name: str, subject: str, extension: str) -> None:
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        run(["openssl", "req", *_KEY, "-keyout", self.folder / f"{name}.key", "-out", request, "-subj", subject])
        extensions.write_text(extension)
        signer: list[str | Path] = ["-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial"]
        out: list[str | Path] = ["-out", self.folder / f"{name}.crt", "-days", "3650", "-extfile", extensions]
        run(["openssl", "x509", "-req", "-in", request, *signer, *out])


_KEY = ["-newkey", "rsa:2048", "-nodes"]


def write_kubeconfig(file: Path, server: str, token: str, ca: Path | None) -> None:
    """A kubeconfig that stands alone (the authority is inside it), readable by its owner only. ``ca`` None: plain HTTP."""
    cluster = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lmj", "cluster": cluster}],
        "users": [{"name": "lmj", "user": {"token": token}}],
        "contexts": [{"name": "lmj", "context": {"cluster": "lmj", "user": "lmj"}}],
        "current-context": "lmj",
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(config, indent=1))
