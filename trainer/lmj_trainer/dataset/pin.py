"""The commit of the hub's dataset that a run has its rows of: found when they are first prepared, and kept for whoever prepares them again.

A branch moves, and the name of prepared rows in the cache has the branch, not what it stood for. So where the cache is lost, or another
field of the job gives the rows another name, they would be other rows.
"""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer.agreed import agreed
from lmj_trainer.data.files import is_file_name
from lmj_trainer.data.source import DataSource, Say
from lmj_trainer.durable import clear_sites, publish
from lmj_trainer.errors import UserError
from lmj_trainer.hub import is_commit
from lmj_trainer.pretrained import ORIGIN, SITE
from lmj_trainer.wording import WARNING


@dataclass(frozen=True)
class Pin:
    """Where a run keeps the commit. A folder, because the first of several that make one wins on any storage."""

    folder: Path
    source: str
    revision: str | None
    results: str | None = None
    """Those of the job, in object storage, where its machines agree; None: they share the folder."""

    @classmethod
    def of(cls, spec: JobSpec) -> "Pin | None":
        """None: no rows are a hub's, or ``dataset.revision`` is a commit, which never stands for anything else."""
        dataset, splits = spec.dataset, spec.dataset.splits
        named = (splits.train, splits.validation, splits.test)
        if is_commit(dataset.revision) or DataSource.of(spec).kind != "hub":
            return None
        if all(name is None or is_file_name(name) for name in named):
            return None
        name = dataset.source if dataset.revision is None else f"{dataset.source}@{dataset.revision}"
        # A model's folder is called by its id, which has no such sign.
        layout = Layout.of(spec)
        return cls(layout.pretrained / f"dataset={name.replace('/', '--')}", dataset.source, dataset.revision, layout.results)

    def commit(self) -> str | None:
        """The commit; None: none was kept yet. UserError: it cannot be read."""
        path = self.folder / ORIGIN
        try:
            commit = json.loads(path.read_bytes())["commit"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} cannot be read ({error}): it names the commit of {self.source} that the run is of"
            ) from error
        if not is_commit(commit):
            raise UserError(f"{path} names {commit!r} as the commit of {self.source}, which is none: 40 hex digits are")
        return str(commit)

    def keep(self, commit: str) -> str:
        """Keep ``commit``; the one that is kept, which is another's where that was faster. Raises OSError when there is no room."""
        commit = agreed(self.results, f"the commit of {self.folder.name}", commit)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        clear_sites(self.folder.parent, SITE, time.time())
        site = Path(mkdtemp(prefix=SITE, dir=self.folder.parent))
        try:
            origin = {"source": self.source, "revision": self.revision, "commit": commit}
            (site / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n")
            publish(site, self.folder)
        finally:
            shutil.rmtree(site, ignore_errors=True)
        return self.commit() or commit

    def keep_if_possible(self, commit: str, say: Say) -> str:
        """As :meth:`keep`; where there is no room, a warning and ``commit``."""
        try:
            return self.keep(commit)
        except OSError as error:
            say(f"{WARNING}the commit {commit} of {self.source} cannot be kept in {self.folder.parent}: {error}; make room")
            return commit


def pinned(spec: JobSpec) -> JobSpec:
    """``spec`` with the commit that the run keeps as the dataset's revision, where it keeps one."""
    pin = Pin.of(spec)
    commit = None if pin is None else pin.commit()
    return spec if commit is None else at_commit(spec, commit)


def at_commit(spec: JobSpec, commit: str) -> JobSpec:
    """``spec`` with the dataset as it was at ``commit``."""
    return spec.model_copy(update={"dataset": spec.dataset.model_copy(update={"revision": commit})})
