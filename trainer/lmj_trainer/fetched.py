"""What a job has of object storage besides checkpoints: rows and the model, fetched once into the output folder.

This is the one place where a spec that names buckets becomes one that names paths. Everything after it, from the check of the rows to the
first weights, is as for paths. What is in the output folder is not asked for again: a bucket that changes, or does not answer, is nothing to
a job that trains already.
"""

import json
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from xxhash import xxh3_128

from lmj_api.buckets import in_bucket, split
from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer.agreed import agreed
from lmj_trainer.data.files import SUFFIXES, is_file_name
from lmj_trainer.durable import clear_sites, publish, write_all
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetching import SECONDS, amount, repeatedly
from lmj_trainer.hub import patiently
from lmj_trainer.once import once
from lmj_trainer.pretrained import SITE, SMALL, WEIGHTS
from lmj_trainer.store.port import Entry, NotAFileError, Ref, RefusedError, RenewableError
from lmj_trainer.store.registry import open_place
from lmj_trainer.weight_files import lacking, not_a_folder
from lmj_trainer.wording import one_line

Say = Callable[[str], None]
Open = Callable[[str], Ref]

MODEL = "model.source"
PART = 32 << 20
"""Bytes that are read at a time: so many are in memory, and a bucket is asked for four parts of it at once."""
MOST_FILES = 10_000
MOST_DEPTH = 16
_ORIGIN = ".origin"
"""Ends the name of what says where the rest of the folder is from."""
_LONGEST_NAME = 255
"""Bytes, of all usual file systems."""


@dataclass(frozen=True)
class Place:
    """A field of the spec whose value is in object storage."""

    field: str
    uri: str
    folder: Path
    """Where what was fetched lies, once it is whole."""

    @property
    def path(self) -> Path:
        """What the field means then: it has the name that it has in the bucket, by which states and results know it."""
        return self.folder / self.uri.rpartition("/")[2]

    def ref(self, open_: Open) -> Ref:
        """The place in its store. Raises UserError."""
        scheme, bucket, key = split(self.uri)
        return Ref(open_(f"{scheme}://{bucket}").store, key)


@dataclass(frozen=True)
class _Member:
    """A file that is to be fetched."""

    ref: Ref
    names: tuple[str, ...]
    """Where it lies below the place; none: it is the place."""
    entry: Entry


def places_of(spec: JobSpec) -> tuple[Place, ...]:
    """What ``spec`` has in object storage, but for checkpoints."""
    splits, folder = spec.dataset.splits, Layout.of(spec).fetched
    named = {
        # Rows that are read while the job trains stay where they are.
        "dataset.source": spec.dataset.source if spec.dataset.streaming is None else None,
        "dataset.splits.validation": splits.validation,
        "dataset.splits.test": splits.test,
        MODEL: spec.model.source,
    }
    return tuple(
        # Of a model not all files are fetched, so the same place as rows is another folder.
        Place(field, uri, folder / xxh3_128(f"{'model' if field == MODEL else 'rows'} {uri}".encode()).hexdigest())
        for field, uri in named.items()
        if uri is not None and in_bucket(uri)
    )


def local(spec: JobSpec) -> JobSpec:
    """``spec`` with the paths of what was fetched; nobody is asked for anything."""
    there = {place.field: str(place.path) for place in places_of(spec) if place.folder.is_dir()}
    if not there:
        return spec
    dataset = spec.dataset
    splits = {part: there[name] for part in ("validation", "test") if (name := f"dataset.splits.{part}") in there}
    changed = {"source": there.get("dataset.source", dataset.source), "splits": dataset.splits.model_copy(update=splits)}
    model = spec.model.model_copy(update={"source": there.get(MODEL, spec.model.source)})
    return spec.model_copy(update={"dataset": dataset.model_copy(update=changed), "model": model})


def fetch(spec: JobSpec, say: Say, who: str | None = None, patience: float | None = None, open_: Open = open_place) -> JobSpec:
    """``spec`` with the paths of what it has in object storage, which is fetched where it is not there yet. Of several processes one fetches,
    the others wait. ``who``: this process, see :func:`once`. ``patience``: seconds for which storage that does not answer is asked again (most
    of the time that a worker has to start).

    Raises UserError for what cannot be had, or kept here; OutageError where storage does not answer, or another is not done in time.
    """
    seconds = 0.8 * spec.recovery.start_timeout_seconds
    asking, results = seconds if patience is None else patience, Layout.of(spec).results
    for place in places_of(spec):
        _fetch_once(place, open_, say, who, seconds, asking)
        if results is not None:
            patiently(partial(_require_agreed, place, results), asking, say)
    return local(spec)


@contextmanager
def trying(spec: JobSpec, say: Say, open_: Open = open_place, *, forget: bool = False) -> Iterator[JobSpec]:
    """As :func:`fetch`, for a look at a job, whose errors name places as the spec does. When the body raises, or to ``forget``, what was fetched
    for it is removed again; else its training finds it there.
    """
    folder, places, own, keeps = Layout.of(spec).fetched, places_of(spec), list[Path](), False
    made = [path for path in (folder, *folder.parents) if not path.exists()] if places else []
    try:
        for place in places:
            # One request is tried again for long enough, where somebody waits.
            if _fetch_once(place, open_, say, None, 0.8 * spec.recovery.start_timeout_seconds, 0):
                own.append(place.folder)
        yield local(spec)
        keeps = not forget
    except UserError as error:
        raise UserError(as_named(spec, str(error))) from error
    finally:
        if not keeps:
            for path in own:
                shutil.rmtree(path, ignore_errors=True)
            for path in made:  # deepest first
                with suppress(OSError):  # another process has something there
                    path.rmdir()


@contextmanager
def borrowed(uri: str, what: str, say: Say, open_: Open = open_place) -> Iterator[str]:
    """The path of the rows in ``uri``, for a command that needs them for a moment; another name as it is. ``what``: the argument.

    Raises as :func:`fetch`.
    """
    if not in_bucket(uri):
        yield uri
        return
    with TemporaryDirectory() as folder:
        try:
            place = Place(what, uri.rstrip("/"), Path(folder) / "rows")
            if not split(place.uri)[2]:
                raise ValueError(f"{uri}: this is a whole bucket: name a file or folder in it")
        except ValueError as error:
            raise UserError(f"{what} {error}") from error
        _fetch(place, open_, say)
        try:
            yield str(place.path)
        except UserError as error:
            raise UserError(str(error).replace(str(place.path), place.uri)) from error


def as_named(spec: JobSpec, text: str) -> str:
    """``text`` with places as the spec names them, and not where they were fetched to."""
    for place in places_of(spec):
        text = text.replace(str(place.path), place.uri)
    return text


def _fetch_once(place: Place, open_: Open, say: Say, who: str | None, seconds: float, patience: float) -> bool:
    """Have it there; whether this process fetched it. ``seconds``: for which another is waited for."""
    if place.folder.is_dir():
        return False
    clear_sites(place.folder.parent, SITE, time.time())
    done: list[None] = []
    once(
        place.folder,
        lambda tell: done.append(patiently(lambda: _fetch(place, open_, tell), patience, tell)),
        place.uri,
        say,
        seconds,
        who,
    )
    return bool(done)


def _fetch(place: Place, open_: Open, say: Say) -> None:
    """Into a folder aside, which gets the place's name when everything in it is on the disk."""
    came, all_ = 0, 0

    def tell() -> None:
        say(f"fetching {place.uri}: {amount(came, all_)}" if all_ else f"looking at {place.uri}")

    def count(size: int) -> None:
        nonlocal came
        came += size

    with repeatedly(tell, SECONDS), _keeping(place):
        with _asking(place):
            members = _members(place, place.ref(open_))
        all_ = sum(member.entry.size for member in members)
        _require_room(place, all_)
        place.folder.parent.mkdir(parents=True, exist_ok=True)
        site = Path(mkdtemp(prefix=SITE, dir=place.folder.parent))
        try:
            tell()
            own = site / place.path.name
            if not any(not member.names for member in members):
                own.mkdir()
            buffer = memoryview(bytearray(min(PART, max((member.entry.size for member in members), default=0))))
            whole = xxh3_128()
            for member in sorted(members, key=lambda member: member.names):
                whole.update("/".join(member.names).encode() + b"\0")
                whole.update(_copy(place, member, own.joinpath(*member.names), buffer, count))
            files = {"/".join(member.names) or own.name: member.entry.size for member in members}
            origin = {"source": place.uri, "digest": whole.hexdigest(), "files": files}
            (site / f"{own.name}{_ORIGIN}").write_text(json.dumps(origin, indent=1) + "\n")
            publish(site, place.folder)
        finally:
            shutil.rmtree(site, ignore_errors=True)


def _copy(place: Place, member: _Member, target: Path, buffer: memoryview, count: Callable[[int], None]) -> bytes:
    """Write the file, in parts; its digest. Raises OutageError when it is another one by the end: parts of two would make neither."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size, digest = member.entry.size, xxh3_128()
    with target.open("xb", buffering=0) as file:
        for start in range(0, size, max(1, len(buffer))):
            part = buffer[: min(len(buffer), size - start)]
            with _asking(place):
                member.ref.fill(start, [part])
            write_all(file, part)
            digest.update(part)
            count(len(part))
    with _asking(place):
        same = member.ref.entry() == member.entry
    if not same or target.stat().st_size != size:
        raise OutageError(f"{place.field}: {member.ref} was changed while it was fetched")
    return digest.digest()


def _require_agreed(place: Place, results: str) -> None:
    """Raise UserError where another machine of the job has fetched something else from there. What is here goes then."""
    origin = place.folder / f"{place.path.name}{_ORIGIN}"
    try:
        digest = str(json.loads(origin.read_bytes())["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{origin} cannot be read ({error}): remove {place.folder}, and it is fetched again") from error
    if agreed(results, f"{place.field} {place.uri}", digest) != digest:
        shutil.rmtree(place.folder, ignore_errors=True)
        raise UserError(f"{place.field} {place.uri}: is not what the run began with: put it back, or choose another output.path")


def _members(place: Place, root: Ref) -> list[_Member]:
    """The files of ``place``, each by a name that this machine may have. Raises UserError, and as the store does."""
    entry = _entry(root)
    if place.field == MODEL:
        if not _is_folder(root, entry):
            problem = not_a_folder(place.path.name) if entry else "there is no such folder"
            raise UserError(f"{place.field} {place.uri}: {problem}")
        return _of_model(place, root)
    if _is_folder(root, entry):
        if is_file_name(place.uri):
            raise UserError(f"{place.field} {place.uri}: is a folder, not a {Path(place.uri).suffix} file: name a file in it")
        return _below(place, root)
    if entry is None:
        raise UserError(f"{place.field} {place.uri}: there is no such file or folder")
    if not is_file_name(place.uri):
        raise UserError(f"{place.field} {place.uri}: has no ending that is known: name it {', '.join(SUFFIXES)}, as what it is")
    return [_Member(root, (), entry)]


def _is_folder(ref: Ref, entry: Entry | None) -> bool:
    """``entry``: that of the file with this name. An empty one beside a folder is how some storage marks folders. Raises UserError for both."""
    if not ref.is_folder():
        return False
    if entry is not None and entry.size:
        raise UserError(f"{ref} is a file and a folder as well: rename one of them")
    return True


def _of_model(place: Place, root: Ref) -> list[_Member]:
    """What is read of a model's folder: configuration, tokenizer, weights as safetensors."""
    there = root.files()
    names = [name for name in there if any(fnmatchcase(name, pattern) for pattern in (*SMALL, *WEIGHTS))]
    if "config.json" not in names:
        raise UserError(f"{place.field} {place.uri}: has no config.json: name a folder that save_pretrained wrote")
    _require_few(place, len(names))
    if (lack := lacking(there)) is not None:
        raise UserError(f"{place.field} {place.uri}: {lack}")
    return [_Member(root / _safe(place, name), (name,), (root / name).entry()) for name in names]


def _below(place: Place, root: Ref) -> list[_Member]:
    found: list[_Member] = []
    left: list[tuple[str, ...]] = [()]
    while left:
        above = left.pop()
        folder = Ref(root.store, "/".join((root.key, *above)))
        folders, files = folder.folders(), folder.files()
        if len(above) >= MOST_DEPTH and folders:
            raise UserError(
                f"{place.field} {place.uri}: has folders in folders, more than {MOST_DEPTH} deep: name the one with the rows"
            )
        left += [(*above, _safe(place, name)) for name in folders]
        # Each may be asked for what it is: not more than can be there.
        _require_few(place, len(found) + len(files) + len(left))
        for name in files:
            ref = folder / _safe(place, name)
            entry = ref.entry()
            if name not in folders or not _is_folder(ref, entry):
                found.append(_Member(ref, (*above, name), entry))
    return found


def _require_few(place: Place, count: int) -> None:
    if count > MOST_FILES:
        raise UserError(f"{place.field} {place.uri}: has more than {MOST_FILES} files: name a folder with the rows alone")


def _safe(place: Place, name: str) -> str:
    """``name``, of a file or folder of somebody's bucket. Raises UserError where it would lie elsewhere here, or could not be shown."""
    wild = any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    if name in ("", ".", "..") or "/" in name or wild or len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise UserError(f"{place.field} {place.uri}: has the name {one_line(name, 60)!r}, which no file may have here: rename it")
    return name


def _entry(ref: Ref) -> Entry | None:
    try:
        return ref.entry()
    except (FileNotFoundError, NotAFileError):
        return None


def _require_room(place: Place, size: int) -> None:
    here = next(path for path in place.folder.parents if path.exists())
    if (free := shutil.disk_usage(here).free) < size:
        raise UserError(
            f"{place.field} {place.uri}: there is no room for it in {place.folder.parent}: it has {amount(size, 0)}, and "
            f"{amount(free, 0)} are free: make room, or choose another output.path"
        )


@contextmanager
def _asking(place: Place) -> Iterator[None]:
    """Errors of the store as those of who can mend them."""
    try:
        yield
    except FileNotFoundError as error:
        raise OutageError(f"{place.field}: {error} went away while {place.uri} was fetched") from error
    except RenewableError as error:
        raise OutageError(f"{place.field}: {one_line(error, 600)}") from error
    except RefusedError as error:
        hint = (
            "name the bucket as it is called, and give credentials that may read it (checkpoint.secretName, or the environment)"
        )
        raise UserError(f"{place.field}: {one_line(error)}: {hint}") from error
    except OSError as error:
        raise OutageError(f"{place.field}: {one_line(error)}") from error


@contextmanager
def _keeping(place: Place) -> Iterator[None]:
    """Errors of this machine's disk."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{place.field} {place.uri}: cannot be kept in {place.folder.parent}: {one_line(error.strerror or error)}: make room there, or "
            "choose another output.path"
        ) from error
