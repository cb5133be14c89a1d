"""What the Trainer of transformers posts of its progress (its ``KubeflowCallback``), read. The facts, as transformers 5.23.0 has them:

- It is there in each Trainer when ``KUBEFLOW_TRAINER_SERVER_URL`` is set as its arguments are made, whatever ``report_to`` says;
  ``DISABLE_KUBEFLOW_INTEGRATION=TRUE`` turns it off.
- It posts with ``urllib.request.urlopen`` to exactly that URL, http or https, ``timeout=5``, and honours the proxies of the environment. A
  certificate authority is read from the file ``KUBEFLOW_TRAINER_SERVER_CA_CERT``; https is not demanded, and a server on 127.0.0.1 needs none.
- ``KUBEFLOW_TRAINER_SERVER_TOKEN`` is the path of a file with the token; it is read again after 300 s. Without it nothing is posted. Headers:
  ``Authorization: Bearer TOKEN`` and ``Content-Type: application/json``.
- Body: ``{"trainerStatus": {"lastUpdatedTime": ISO time, "progressPercentage": 0 to 100, "estimatedRemainingSeconds": whole number,
  "metrics": [{"name": text, "value": text}]}}``; all but the time may be missing.
- Only global rank 0 posts, in its own thread: as training begins (0 %, ``total_steps``, no step: one that resumes says 0 % too), after a step
  when the last post is 5 s old (``current_step``, ``total_steps``, ``current_epoch`` rounded to hundredths, all numbers logged so far,
  at most 99 %), and as it ends (100 %, what was logged, no step; the same when it was stopped early).
- It wants status 200. Any error is logged at level debug and forgotten: the script goes on, at most 5 s later.
- Its remaining seconds count the steps before a resume as if they had been taken since.
"""

import json
from dataclasses import dataclass

MOST_METRICS = 256
MOST_CHARACTERS = 128
"""Of the name of a metric, and of its value."""


@dataclass(frozen=True)
class TrainerStatus:
    """One post."""

    percent: float | None
    """0 to 100; None: it does not say."""
    remaining_seconds: float | None
    metrics: dict[str, str]
    """Name and value, as text."""


def read_trainer_status(body: bytes) -> TrainerStatus:
    """Read a body. Raise ValueError, in one line, if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    status = value.get("trainerStatus") if isinstance(value, dict) else None
    if not isinstance(status, dict):
        raise ValueError("the body is no object with a trainerStatus")
    metrics = status.get("metrics")
    pairs = metrics[:MOST_METRICS] if isinstance(metrics, list) else []
    return TrainerStatus(
        _within(status.get("progressPercentage"), 100),
        _within(status.get("estimatedRemainingSeconds"), 1 << 53),
        {
            pair["name"]: pair["value"]
            for pair in pairs
            if isinstance(pair, dict) and _text(pair.get("name")) and _text(pair.get("value"))
        },
    )


def _within(value: object, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS
