"""Whose signature a pod's agent obeys: a public key on its command line, which nobody can change while the pod is there."""

import sys
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from lmj_api.signed import PUBLIC_KEY
from lmj_operator.backend.kubernetes.labels import CONTAINER

_OPTION = "--trust="
"""Of the agent. One word with its key, because a key may begin as an option does."""
_MOST_WORDS = 200
"""Of a command line; ours has some thirty."""


def trust_options(keys: tuple[str, ...]) -> list[str]:
    """The words of a command line that say so."""
    return [_OPTION + key for key in keys]


def trusted_by(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The public keys on the command line of the agent in a pod's ``spec``; none: it is of a version before, or no agent's."""
    containers = spec.get("containers") or []
    trainer: Mapping[str, Any] = next((c for c in containers if c.get("name") == CONTAINER), {})
    # A webhook that starts the agent by another program leaves its words behind that program's, as arguments.
    words = chain(trainer.get("command") or [], trainer.get("args") or [])
    keys = (word.removeprefix(_OPTION) for word in islice(words, _MOST_WORDS) if word.startswith(_OPTION))
    # All pods of an operator name the same one, or few: each is there once.
    return tuple(sys.intern(key) for key in keys if PUBLIC_KEY.fullmatch(key))
