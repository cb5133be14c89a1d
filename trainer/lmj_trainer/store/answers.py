"""What servers of object storage say of a request that was not done, as the library's errors have it."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

_NO_KEY = {"NoSuchKey", "BlobNotFound"}
_KEYS_REFUSED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "InvalidTokenId",
    "InvalidAccessKeyId",
    "XAdminUserNotFound",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "AuthenticationRequired",
    "AuthorizationFailure",
    "InvalidAuthenticationInfo",
}
"""Of what a request is signed with: it has expired, was revoked, or was never right."""
_REFUSED = {"NoSuchBucket", "AccessDenied", "ContainerNotFound", "AuthorizationPermissionMismatch"} | _KEYS_REFUSED
_BAD_REQUEST = "status code: 400"
"""S3 gives it for a session that has expired."""
_QUERY = re.compile(r"\?\S+")
_ANSWER = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)


def code(error: BaseException) -> str | None:
    """The server's name for what is wrong; None: it said none. A listing's error has no class of its own, only this."""
    answer = _ANSWER.search(str(error))
    return answer[1] if answer is not None else None


def refuses_keys(error: Exception) -> bool:
    """Whether the server does not take what the request was signed with, whoever else may do what was asked."""
    return isinstance(error, UnauthenticatedError) or code(error) in _KEYS_REFUSED


def refuses(error: Exception) -> bool:
    """Whether the server does not give it to this caller, or there is no such bucket, or no such user."""
    said = code(error)
    nothing = isinstance(error, FileNotFoundError) and said is not None and said not in _NO_KEY
    return nothing or isinstance(error, PermissionDeniedError | UnauthenticatedError) or said in _REFUSED


def is_silent(error: Exception) -> bool:
    """Whether the server did not do it, and its answer has no content that says why: one to a request for a head has none."""
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or _BAD_REQUEST in str(error)
    return refused and code(error) is None


def reason(error: BaseException) -> str:
    """What the server answered, or else what became of the request: without the query of an URL, which may sign it, and without a key."""
    said = str(error)
    answer = _ANSWER.search(said)
    text = f"{answer[1]}: {answer[2]}" if answer is not None else _QUERY.sub("?…", said.partition("\n\nDebug source")[0])
    return " ".join(text.split())[:300]
