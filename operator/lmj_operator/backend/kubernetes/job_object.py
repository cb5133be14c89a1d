"""A job's object as it is kept: what of it is read. Whoever may make a job decides what else is in it, up to the server's 1.5 MB."""

import json
from collections.abc import Mapping
from typing import Any

from lmj_api.names import KIND, MIGRATE
from lmj_api.problems import SpecError
from lmj_api.size import check_size
from lmj_operator.backend.kubernetes.nesting import parsed, shallow
from lmj_operator.backend.kubernetes.packed import packed

LARGE = 64 << 10
"""Bytes of an object: one that is smaller is left as it is, for all that is done with it costs little."""
_LONGEST_REQUEST = 8 << 10
_METADATA = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_TTL = "ttlSecondsAfterFinished"
_TEXT, _REFUSED = "lmj.dev/text", "lmj.dev/refused"
"""In the place of a spec, which has no such fields: the spec as packed text, and why it is not kept."""

Object = dict[str, Any]


def kept(data: bytes) -> Any:
    """An object in JSON, parsed; of a large one that is a job what is read alone, its spec as packed text. Raises ValueError: it is no JSON."""
    value = parsed(data)
    return _kept(value) if len(data) > LARGE else value


def kept_event(line: bytes) -> bytes:
    """An event of a watch with what is kept of its object. Raises ValueError: it is no JSON."""
    if len(line) <= LARGE:
        return shallow(line)
    event = parsed(line)
    if isinstance(event, dict):
        event["object"] = _kept(event.get("object"))
    return json.dumps(event, ensure_ascii=False).encode(errors="replace")


def _kept(thing: Any) -> Any:
    if not isinstance(thing, dict) or thing.get("kind") != KIND:
        return thing
    made, spec, metadata = dict(thing), thing.get("spec"), thing.get("metadata")
    if isinstance(spec, dict):
        made["spec"] = {_TEXT: packed_spec(spec), "dataParallel": spec.get("dataParallel")}
    if isinstance(metadata, dict):
        request = move_request(metadata)
        made["metadata"] = kept_metadata(metadata) | ({"annotations": {MIGRATE: request}} if request is not None else {})
    return made


def kept_metadata(metadata: Mapping[str, Any]) -> Object:
    """What is read of a job's ``metadata``, its request for a move apart."""
    return {key: metadata[key] for key in _METADATA if key in metadata}


def move_request(metadata: Mapping[str, Any]) -> str | None:
    """Which ranks a person asked to move. None: none; one that is longer than any that could be meant is none."""
    request = (metadata.get("annotations") or {}).get(MIGRATE)
    return request if isinstance(request, str) and len(request) <= _LONGEST_REQUEST else None


def packed_spec(spec: Mapping[str, Any]) -> str:
    """``spec``, or what :func:`kept` has in its place, as packed JSON; of one that is too large why it is refused, and for how long the job
    stays.
    """
    if isinstance(text := spec.get(_TEXT), str):
        return text  # the same one that others keep of this object
    try:
        check_size({"spec": spec})
    except SpecError as error:
        seconds = spec.get(_TTL)
        spec = {_REFUSED: str(error)} | ({_TTL: seconds} if isinstance(seconds, int) else {})
    return packed(json.dumps(spec, ensure_ascii=False).encode(errors="replace").decode())


def refuse(spec: Mapping[str, Any]) -> None:
    """Raise SpecError, with why, for a ``spec`` that was not kept."""
    if isinstance(spec.get(_REFUSED), str):
        raise SpecError(str(spec[_REFUSED]))
