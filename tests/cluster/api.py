"""A small client of the API server for the cluster itself and for tests: JSON in and out, no library beside the standard one."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError


class ApiError(ClusterError):
    """The API server's answer was no; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Api:
    """Speaks with the server that a kubeconfig of ours (JSON, one context, a token) names."""

    def __init__(self, kubeconfig: Path, seconds: float = 10):
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self.token: str = config["users"][0]["user"]["token"]
        self._seconds = seconds
        authority = cluster.get("certificate-authority-data")
        self.tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode()) if authority else None

    def ready(self) -> bool:
        """Whether the server answers and calls itself ready."""
        try:
            return bool(self.call("GET", "/readyz") == "ok")
        except (ApiError, OSError):
            return False

    def get(self, path: str) -> Any:
        """The object or list at ``path``. Raises ApiError."""
        return self.call("GET", path)

    def apply(self, path: str, body: dict[str, Any]) -> Any:
        """Create or change the object at ``path`` by server-side apply."""
        return self.call("PATCH", f"{path}?fieldManager=cluster&force=true", body, "application/apply-patch+yaml")

    def delete(self, path: str) -> None:
        """Delete the object at ``path``; no error when it is gone."""
        try:
            self.call("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, kind: str = "application/json") -> Any:
        """The decoded answer (text when it is not JSON). Raises ApiError for a refusal, OSError when the server can't be reached."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json, */*"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._seconds, context=self.tls) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, f"{method} {path}: {error.code}: {error.read().decode(errors='replace')[:500]}") from error
        return json.loads(text) if text.startswith(("{", "[")) else text
