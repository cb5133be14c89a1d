"""An upload, or a download, from its pod to its end: with another connection where one breaks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.client.volume.bundle import command
from lmj_operator.client.volume.download import Download, listed
from lmj_operator.client.volume.exec import run_in
from lmj_operator.client.volume.far.tree import Found, Tree, names_of
from lmj_operator.client.volume.helper import Cluster, Helper, helper
from lmj_operator.client.volume.manifest import MOUNT, Wanted
from lmj_operator.client.volume.source import Source
from lmj_operator.client.volume.talk import PodLine, Talk, talking
from lmj_operator.client.volume.transfer import Tally, Watcher
from lmj_operator.client.volume.trouble import Broken, VolumeError
from lmj_operator.client.volume.upload import Upload
from lmj_operator.client.volume.uri import Place

TRIES = 5
"""Connections in a row that bring nothing."""
AGAIN_SECONDS = 2.0


async def upload(cluster: Cluster, wanted: Wanted, source: Source, target: Place, watcher: Watcher) -> tuple[Tally, Place]:
    """The files of ``source`` to ``target``; returns what came of it, and where they are. Raises VolumeError and OSError."""
    tally = Tally(links=source.left_out.links, special=source.left_out.special)
    watcher.total(len(source.files), sum(file.size for file in source.files))
    async with helper(cluster, wanted, watcher.say, write=True) as pod:
        async with _talk(pod, target) as talk:
            there = await _kind(talk, target)
        place, far = target, lambda path: target.below(path).path
        if not source.folder:
            place = target.below(source.name) if target.folder or there == "folder" else target
            far = lambda _: place.path  # noqa: E731
        elif there == "file":
            raise VolumeError(f"{target}: a file is here, and a folder is to go there: name another path")
        await _through(pod, place, Upload(source.tree, source.files, far, watcher, tally).run, tally, watcher)
    return tally, place


async def download(cluster: Cluster, wanted: Wanted, source: Place, target: Path, watcher: Watcher) -> Tally:
    """The file ``source``, or all files in that folder, into the folder ``target``, which is made. Raises VolumeError and OSError."""
    tally = Tally()
    async with helper(cluster, wanted, watcher.say, write=False) as pod:
        async with _talk(pod, source) as talk:
            there = await talk.ask({"op": "kind", "path": source.path})
            if there["kind"] == "file":
                *above, name = names_of(source.path)
                files, prefix = [Found(name, int(there["size"]))], "/".join(above)
            elif there["kind"] == "folder":
                files, prefix = await listed(talk, source.path, tally), source.path
            else:
                what = {"none": "there is nothing of this name", "link": "it is a link, and links are not followed"}
                raise VolumeError(f"{source}: {what.get(str(there['kind']), 'neither a file nor a folder')}")
        watcher.total(len(files), sum(file.size for file in files))
        await _through(pod, source, Download(_made(target), files, prefix, watcher, tally).run, tally, watcher)
    return tally


async def _through(pod: Helper, place: Place, run: Callable[[Talk], Awaitable[None]], tally: Tally, watcher: Watcher) -> None:
    """``run``, again with another connection while that brings something. Raises VolumeError."""
    failed = 0
    while True:
        before = tally.bytes_sent, len(tally.done)
        try:
            async with _talk(pod, place) as talk:
                await run(talk)
            return
        except Broken as error:
            failed = failed + 1 if before == (tally.bytes_sent, len(tally.done)) else 1
            if failed == TRIES:
                raise
            await pod.alive()
            watcher.say(f"{error}; connecting again")
        await asyncio.sleep(failed * AGAIN_SECONDS)


@asynccontextmanager
async def _talk(pod: Helper, place: Place) -> AsyncIterator[Talk]:
    async with (
        run_in(pod.client, pod.namespace, pod.name, CONTAINER, command(MOUNT)) as process,
        talking(PodLine(process), place.claim) as talk,
    ):
        yield talk


async def _kind(talk: Talk, place: Place) -> str:
    kind = str((await talk.ask({"op": "kind", "path": place.path}))["kind"])
    if kind in ("link", "special"):
        raise VolumeError(f"{place}: a {kind} {'file ' * (kind == 'special')}is here: name another path, or remove it")
    return kind


def _made(folder: Path) -> Tree:
    folder.mkdir(parents=True, exist_ok=True)
    return Tree(str(folder))
