"""Whose signature a pod's agent obeys: a public key on its command line, which nobody can change while the pod is there."""

import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from lmj_api.signed import PUBLIC_KEY
from lmj_operator.backend.kubernetes.labels import CONTAINER

_TRUST, _TOKEN = "--trust=", "--token="
"""Of the agent. One word with its key, because a key may begin as an option does."""
_MOST_WORDS = 200
"""Of a command line; ours has some thirty."""


def trust_options(keys: tuple[str, ...]) -> list[str]:
    """The words of a command line that say so."""
    return [_TRUST + key for key in keys]


def token_options(path: str) -> list[str]:
    """The words of a command line by which an agent serves inside TLS, and shows the token at ``path``."""
    return [_TOKEN + path]


def trusted_by(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The public keys on the command line of the agent in a pod's ``spec``; none: it is of a version before, or no agent's."""
    keys = (word.removeprefix(_TRUST) for word in _words(spec) if word.startswith(_TRUST))
    # All pods of an operator name the same one, or few: each is there once.
    return tuple(sys.intern(key) for key in keys if PUBLIC_KEY.fullmatch(key))


def shows_token(spec: Mapping[str, Any]) -> bool:
    """Whether the agent in a pod's ``spec`` serves inside TLS, and shows the pod's token."""
    return any(word.startswith(_TOKEN) for word in _words(spec))


def _words(spec: Mapping[str, Any]) -> Iterator[str]:
    containers = spec.get("containers") or []
    trainer: Mapping[str, Any] = next((c for c in containers if c.get("name") == CONTAINER), {})
    # A webhook that starts the agent by another program leaves its words behind that program's, as arguments.
    return islice(chain(trainer.get("command") or [], trainer.get("args") or []), _MOST_WORDS)
