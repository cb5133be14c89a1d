"""The digest of all that a job's weights depend on: a checkpoint is resumed only under the digest it was written with."""

import json

import xxhash

from lmj_api.identity import state_fields
from lmj_api.spec import JobSpec


def state_digest(spec: JobSpec) -> str:
    """Digest of the model, data and hyper-parameters of ``spec`` (:func:`lmj_api.identity.state_fields`), 32 hex digits."""
    value = {"format": "lmj.state/1", **state_fields(spec)}
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return xxhash.xxh3_128(canonical.encode()).hexdigest()
