"""What a worker does before its rank matters, done ahead: a standby's part of a start."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lmj_api.layout import Layout
from lmj_api.protocol import EventKind, Progress
from lmj_api.spec import LiveMigrationJob
from lmj_api.topology import FIRST
from lmj_trainer.wording import WARNING
from lmj_trainer.worker.control import Control

CHUNK = 1 << 22
Say = Callable[[str], None]


def prepare_standby(job: LiveMigrationJob, pod: str, control: Control) -> None:
    """In ``pod``, check the model, fetch it, prepare the dataset, and read both once, so that they are in this machine's memory.

    Raises UserError for what is wrong with them.
    """
    # The fork server has imported these; a process that is started cold does it here.
    from lmj_trainer.agreed import agreed
    from lmj_trainer.check import check_frozen_source, check_model, check_rows
    from lmj_trainer.dataset.prepared import prepare_patiently
    from lmj_trainer.fetched import fetch
    from lmj_trainer.model.config import load_config
    from lmj_trainer.own.source import is_own, load_own
    from lmj_trainer.pretrained import keep

    spec = job.spec

    say = teller(control, None)
    spec = fetch(spec, say, pod)
    say("checking the model")
    check_frozen_source(spec)
    if is_own(spec):
        load_own(spec.model)
    else:
        spec = keep(spec, say, pod, partial(agreed, Layout.of(spec).results))
        check_model(spec)
    prepared = prepare_patiently(spec, say, pod)
    check_rows(spec, prepared.rows)
    if not is_own(spec):
        load_config(spec.model, prepared.labels, prepared.vocab_size)
    cache = Layout.of(spec).cache / prepared.digest
    read = sum(_read(path) for ending in ("npy", "arrow") for path in sorted(cache.glob(f"*.{ending}")))
    if spec.model.source is not None:
        read += sum(_read(path) for path in sorted(Path(spec.model.source).glob("*.safetensors")))
    say(f"dataset and model are at hand ({read / 1e6:.1f} MB)")


def teller(control: Control, rank: int | None) -> Say:
    """Passes on what ``rank`` (None: a standby) prepares. A warning is one of its own; all ranks look at the same data, so rank 0 gives it."""

    def say(text: str) -> None:
        if not text.startswith(WARNING):
            control.emit(EventKind.PREPARING, text, progress=Progress(step=0, steps=1, epoch=0.0, activity=f"prepare: {text}"))
        elif rank == FIRST:
            control.emit(EventKind.WARNING, text.removeprefix(WARNING))

    return say


def _read(path: Path) -> int:
    """Bytes of the file, all of them read."""
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
    return size
