"""A server whose answer to a request for a file's head says nothing but its status, as those of S3 do."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from http_thread import listening
from secret_folder import SecretFolder

from lmj_trainer.store.port import Ref, RefusedError, RenewableError
from lmj_trainer.store.registry import open_place

Asked = list[tuple[str, str]]
EXPIRED = (400, "ExpiredToken", "The provided token has expired.")
DENIED = (403, "AccessDenied", "Access Denied.")
WRONG = (400, "InvalidRequest", "Not so.")
ABSENT = (404, "NoSuchKey", "The specified key does not exist.")


@pytest.fixture
def asked() -> Asked:
    """Requests that came."""
    return []


@pytest.fixture
def file(request: pytest.FixtureRequest, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ref]:
    """One of which the server says what the test's parameter is."""
    status, code, message = request.param

    class Handler(BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            asked.append((self.command, self.path))
            content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = _refuse  # noqa: N815 - names that the library looks for

    with listening(Handler, "127.0.0.1", 0) as port:
        keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        SecretFolder(tmp_path / "secret", {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).lead(monkeypatch)
        yield open_place("s3://own/x") / "f"


@pytest.mark.parametrize("file", [EXPIRED], indirect=True)
def test_what_is_refused_of_a_head_is_asked_for_why(file: Ref, asked: Asked) -> None:
    with pytest.raises(
        RenewableError, match=r"^s3://own/x/f: ExpiredToken: The provided token has expired: renew the Secret bucket$"
    ):
        file.entry()
    assert asked == [("HEAD", "/own/x/f"), ("GET", "/own/x/f")]


@pytest.mark.parametrize("file", [DENIED], indirect=True)
def test_a_right_that_is_missing_is_none_that_renewal_gives(file: Ref) -> None:
    with pytest.raises(RefusedError, match=r"^s3://own/x/f: AccessDenied: Access Denied\.$") as raised:
        file.entry()
    assert not isinstance(raised.value, RenewableError)


@pytest.mark.parametrize("file", [WRONG], indirect=True)
def test_a_request_that_is_wrong_is_no_refusal(file: Ref) -> None:
    with pytest.raises(OSError, match=r"^s3://own/x/f: InvalidRequest: Not so\.$") as raised:
        file.entry()
    assert not isinstance(raised.value, RefusedError)


@pytest.mark.parametrize("file", [ABSENT], indirect=True)
def test_what_is_not_there_is_asked_for_once(file: Ref, asked: Asked) -> None:
    assert not file.exists()
    assert asked == [("HEAD", "/own/x/f")]
