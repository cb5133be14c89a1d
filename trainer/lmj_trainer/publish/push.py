"""Puts a run's model or adapter on the hub, in one commit."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lmj_api.layout import Layout
from lmj_api.spec import Hub, HubContent, LiveMigrationJob
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.hub import patiently
from lmj_trainer.publish.card import card
from lmj_trainer.trackers.cursor import Cursor
from lmj_trainer.trackers.records import Records
from lmj_trainer.trained import FILE
from lmj_trainer.wording import one_line

PATIENCE_SECONDS = 300.0
"""For which a hub that does not answer is tried again."""
_CARD = "README.md"
_MARKS = ("config.json", "adapter_config.json", FILE)
"""Files of which a folder of results has one; the last is in that of a class of the user's own too."""


class Pushed(NamedTuple):
    """What is on the hub now."""

    url: str
    commit: str


def push(job: LiveMigrationJob, hub: Hub, say: Callable[[str], None]) -> Pushed:
    """Push what ``hub`` says of the results of ``job``. Raises UserError and OutageError, whose text is a line without a credential."""
    layout = Layout.of(job.spec)
    folder = layout.adapter if hub.content is HubContent.ADAPTER else layout.model
    if not any((folder / name).is_file() for name in _MARKS):
        raise UserError(f"{folder}: there is no {hub.content.lower()} here, so there is nothing to push")
    text = _card(job.model_copy(update={"spec": _with(job.spec, hub)}), layout)
    return patiently(lambda: _push(folder, hub, text, job.metadata.name), PATIENCE_SECONDS, say)


def _with(spec: Any, hub: Hub) -> Any:
    return spec.model_copy(update={"output": spec.output.model_copy(update={"hub": hub})})


def _card(job: LiveMigrationJob, layout: Layout) -> str:
    try:
        own = (layout.model / _CARD).read_text()
    except FileNotFoundError:
        own = f"# {job.metadata.name}\n"
    batch = Records(layout).after(Cursor(run=job.metadata.run.id), 0)
    return card(job, own, batch.notes)


def _push(folder: Path, hub: Hub, text: str, job: str) -> Pushed:
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="livemigrationjob")
    try:
        url = api.create_repo(hub.repository, private=hub.private, exist_ok=True)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _CARD)
        operations = [CommitOperationAdd(str(path.relative_to(folder)), path) for path in files]
        operations.append(CommitOperationAdd(_CARD, text.encode()))
        made = api.create_commit(url.repo_id, operations, commit_message=f"{hub.content} of the job {job}")
    except Exception as error:  # noqa: BLE001 - the client's library, and its library's, have errors of their own
        raise _judged(error, hub) from None
    return Pushed(str(url), str(made.oid))


def _judged(error: Exception, hub: Hub) -> UserError | OutageError:
    """Whether it may pass by itself."""
    said = _hidden(one_line(error).partition(" For more information")[0])
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status not in (408, 429) and status < 500:
        remedy = (
            "give a token that may write there, as output.hub.token or HF_TOKEN"
            if status in (401, 403, 404)
            else "look at output.hub.repository"
        )
        return UserError(f"{hub.repository}: the hub answers {status}: {said}; {remedy}")
    if isinstance(error, OSError) or type(error).__module__.startswith("httpx") or isinstance(status, int):
        return OutageError(f"{hub.repository}: the hub cannot be reached, or does not take it: {said}")
    return UserError(f"{hub.repository}: {type(error).__name__}: {said}")


def _hidden(text: str) -> str:
    """``text`` without the credential, and without what looks like one of the hub's."""
    token = os.environ.get("HF_TOKEN", "")
    text = text.replace(token, "***") if token else text
    return re.sub(r"\bhf_\w+", "hf_***", text)
