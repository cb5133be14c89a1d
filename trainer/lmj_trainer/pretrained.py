"""A model of the hub as a run has it: fetched once, at one commit, and kept in the output folder for all that start later.

What the hub answers may be another thing tomorrow, or nothing. A branch moves, a model is taken away, a machine is cut off: none of
that is a mistake of a job that trains already, and none of it may change a bit of what it trains.
"""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer.data.tokens import FILES
from lmj_trainer.durable import clear_sites, publish
from lmj_trainer.fetching import telling
from lmj_trainer.hub import hub_is_reachable, is_hub_id, is_of_the_hub, judged, patiently
from lmj_trainer.model.config import read_config
from lmj_trainer.once import once
from lmj_trainer.wording import WARNING

Say = Callable[[str], None]
Agree = Callable[[str, str], str]

SMALL = ("*.json", *(name for name in FILES if not name.endswith(".json")))
WEIGHTS = ("*.safetensors",)
ORIGIN = "lmj-origin.json"
"""Says where the files of the folder are from."""
SITE = ".fetching-"
"""How the name of a folder begins that is not whole yet."""
_cached: dict[Path, Path] = {}
"""Where this process has what could not be copied, by the folder that was to hold it."""


def keep(spec: JobSpec, say: Say, who: str | None = None, agree: Agree = lambda what, content: content) -> JobSpec:
    """As :func:`kept`; a model that is not there yet is fetched first. Of several ranks one does, and the others wait for it. ``who``: this
    process, see :func:`once`. ``agree``: what all machines have as something, as :func:`~lmj_trainer.agreed.agreed` has it.

    A folder that cannot hold it ends no job: this process goes on with the hub's cache, and a later start tries again. Raises
    UserError when the hub says that there is no such model, or that it is not for everybody; OutageError when it does not answer for
    most of the time that a worker has to start, or another rank is not done by then.
    """
    source, folder = spec.model.source, _folder(spec)
    if source is None or folder is None:
        return spec
    clear_sites(folder.parent, SITE, time.time())
    if folder.is_dir():
        return kept(spec)
    seconds = 0.8 * spec.recovery.start_timeout_seconds  # less than what counts as a start that failed: so it is known why
    once(
        folder,
        lambda tell: _fetch(source, spec.model.revision, folder, seconds, tell, agree),
        f"the model {source}",
        say,
        seconds,
        who,
    )
    return kept(spec)


def _fetch(source: str, revision: str | None, folder: Path, seconds: float, say: Say, agree: Agree) -> None:
    """Put the model into ``folder``, or where this process finds it."""
    small = patiently(lambda: _snapshot(source, revision, SMALL), seconds, say)
    read_config(str(small), None)  # before gigabytes of what cannot be trained
    # The folder that the hub's client made is called by the commit.
    commit = agree(f"the commit of {folder.name}", small.name)
    fetching = f"fetching {source} at commit {commit}"
    say(fetching)

    def weights() -> Path:
        with telling(fetching, say) as bars:
            return _snapshot(source, commit, SMALL + WEIGHTS, bars)

    whole = patiently(weights, seconds, say)
    origin = json.dumps({"source": source, "revision": revision, "commit": commit}, indent=1) + "\n"
    try:
        _copy(whole, folder, origin)
    except OSError as error:
        say(
            f"{WARNING}the model {source} cannot be kept in {folder.parent}: {error}; this start goes on with commit {commit} in the "
            "hub's cache, a later one asks the hub again: make room"
        )
        _cached[folder] = whole


def kept(spec: JobSpec) -> JobSpec:
    """``spec`` with the folder in which the run keeps its model as the model's source, where it keeps one."""
    folder = _folder(spec)
    if folder is None:
        return spec
    found = folder if folder.is_dir() else _cached.get(folder)
    if found is None:
        return spec
    return spec.model_copy(update={"model": spec.model.model_copy(update={"source": str(found), "revision": None})})


def _copy(whole: Path, folder: Path, origin: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    site = Path(mkdtemp(prefix=SITE, dir=folder.parent))
    try:
        for file in sorted(path for path in whole.iterdir() if path.is_file()):
            shutil.copyfile(file, site / file.name)  # what the cache has is a link
        (site / ORIGIN).write_text(origin)
        publish(site, folder)
    finally:
        shutil.rmtree(site, ignore_errors=True)


def _folder(spec: JobSpec) -> Path | None:
    """Where the run keeps its model; None: it is no hub's."""
    source = spec.model.source
    if source is None or Path(source).is_dir() or not is_hub_id(source):
        return None
    name = source if spec.model.revision is None else f"{source}@{spec.model.revision}"
    return Layout.of(spec).pretrained / name.replace("/", "--")


def _snapshot(source: str, revision: str | None, patterns: tuple[str, ...], bars: type[Any] | None = None) -> Path:
    """The folder of the hub's cache with those files of the model, fetched where they are not there. ``bars``: of the client's progress.
    Raises UserError and OutageError.
    """
    reachable = hub_is_reachable()
    from huggingface_hub import snapshot_download

    called = f"no model {source}" + (f" of revision {revision}" if revision else "")
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(patterns), tqdm_class=bars))
    except Exception as error:
        if not is_of_the_hub(error):
            raise
        raise judged(error, called, reachable) from error
