"""The card of a model on the hub: what the model's folder says of itself, how it was trained, and what happened meanwhile."""

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from lmj_api.spec import HubContent, LiveMigrationJob
from lmj_trainer.hub import is_hub_id
from lmj_trainer.trackers.port import Note

_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_MOST_NOTES = 100


def card(job: LiveMigrationJob, folder_card: str, notes: Sequence[Note]) -> str:
    """The card in Markdown. ``folder_card``: that of the model's folder, with its front matter; ``notes``: changes of the group, in order."""
    spec = job.spec
    found = _FRONT.match(folder_card)
    front, body = (found[1], folder_card[found.end() :]) if found is not None else ("", folder_card)
    lines = front.splitlines()
    source = spec.model.source
    # A folder of this machine's is nobody else's to load.
    base = source if source is not None and is_hub_id(source) else None
    adapter = spec.output.hub is not None and spec.output.hub.content is HubContent.ADAPTER
    if adapter:
        lines = ["library_name: peft" if line.startswith("library_name:") else line for line in lines]
        body = re.sub(r"```python\n.*?```", _USAGE.format(base=base or "path/to/the/base/model"), body, flags=re.DOTALL)
    if base is not None:
        lines.append(f"base_model: {base}")
    if is_hub_id(spec.dataset.source):
        lines.append(f"datasets: [{spec.dataset.source}]")
    return "---\n" + "\n".join(lines) + f"\n---\n{body.rstrip()}\n\n{_training(job)}\n{_happened(notes)}"


_USAGE = """```python
from peft import PeftModel
from transformers import AutoModel
model = PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "path/to/this/folder")
```"""


def _training(job: LiveMigrationJob) -> str:
    spec = job.spec
    training, parts = spec.training, spec.data_parallel
    shared = f", each step shared by up to {parts.most} replicas in {parts.shards} shards" if parts.shards > 1 else ""
    versions = ", ".join(f"{name} {found}" for name in ("livemigrationjob", "torch", "transformers") if (found := _version(name)))
    return f"""## Training

- Run {job.metadata.run.id} of the job {job.metadata.name}
- {spec.pipeline.stages} pipeline stages of {spec.pipeline.micro_batches} micro-batches{shared}
- Precision {training.precision}, gradients clipped at norm {training.max_grad_norm:g}, warm-up {training.warmup_steps or training.warmup_ratio}
- {versions}

The same spec and seed give the same weights, to the bit, on the same kind of processor, libraries and threads, whatever
happened meanwhile.
"""


def _happened(notes: Sequence[Note]) -> str:
    if not notes:
        return "## Incidents\n\nNone: the group that trained it never changed.\n"
    rows = [f"| {note.step} | {' '.join(note.text.split()).replace('|', '/')} |" for note in notes[-_MOST_NOTES:]]
    more = f"\nThe first {len(notes) - _MOST_NOTES} are left out.\n" if len(notes) > _MOST_NOTES else ""
    return "## Incidents\n\n| Step | What happened |\n| --- | --- |\n" + "\n".join(rows) + f"\n{more}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
