"""A pod that mounts a claim, from its making to its end."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from kubernetes.aio.client import ApiClient, Configuration

from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.connection import NoCluster, find
from lmj_operator.backend.kubernetes.resources import CLAIMS, EVENTS, PODS
from lmj_operator.client.volume import starting
from lmj_operator.client.volume.image import find_image, of_template
from lmj_operator.client.volume.maker import left_over, this_process
from lmj_operator.client.volume.manifest import DAY, HELPER, VOLUME, Wanted, build
from lmj_operator.client.volume.trouble import VolumeError

POLL_SECONDS = 0.5
SAY_SECONDS = 5.0
"""What keeps a pod longer is told."""
END_SECONDS = 20.0
"""For the call that deletes the pod, also after Ctrl-C."""


@dataclass(frozen=True)
class Cluster:
    """Where the claim is, and how long its pod may take to start. None: what is usual there."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    start_seconds: float = 300.0


@dataclass(frozen=True)
class Helper:
    """A pod that runs, with the claim mounted."""

    client: ApiClient
    api: Api
    namespace: str
    name: str

    async def alive(self) -> None:
        """Raises VolumeError when it is gone."""
        pod = await self.api.get(PODS, self.namespace, self.name)
        if pod is None or not starting.has_started(pod):
            why = "it is gone" if pod is None else starting.has_ended(pod) or "it does not run"
            if pod is not None and (pod.get("status") or {}).get("reason") == "DeadlineExceeded":
                why = f"its {DAY // 3600} hours are over"
            raise VolumeError(f"pod {self.namespace}/{self.name}: {why}; run the same command again: it goes on")


@asynccontextmanager
async def helper(place: Cluster, wanted: Wanted, say: Callable[[str], None], *, write: bool) -> AsyncIterator[Helper]:
    """A pod for ``wanted`` (its namespace filled in here), which is deleted at the end of the block. Raises VolumeError."""
    made = Configuration()
    try:
        usual = await find(made, place.kubeconfig, place.context)
        async with ApiClient(made) as client:
            api, namespace = Api(client), place.namespace or usual
            wanted = await _settled(api, replace(wanted, namespace=namespace), write)
            await _clear(api, namespace)
            pod = await _create(api, wanted)
            try:
                await _started(api, pod, place.start_seconds, say)
                yield Helper(client, api, namespace, pod["metadata"]["name"])
            finally:
                await _delete(api, pod, say)
    except (NoCluster, SpecError) as error:
        raise VolumeError(str(error).replace("spec.template", "the template's")) from error
    except ApiError as error:
        raise VolumeError(_refused(error)) from error


async def _settled(api: Api, wanted: Wanted, write: bool) -> Wanted:
    """With an image, after a look at the claim. Who may not see claims hears from the pod what is wrong with one."""
    try:
        claim = await api.get(CLAIMS, wanted.namespace, wanted.claim)
    except ApiError as error:
        if error.status != 403:
            raise
    else:
        trouble = starting.claim_trouble(claim, wanted.claim, wanted.namespace, write=write)
        if trouble is not None:
            raise VolumeError(trouble)
        wanted = replace(wanted, read_only=wanted.read_only or (claim is not None and starting.is_read_only(claim)))
    image = wanted.image or of_template(wanted.template) or await find_image(api, wanted.namespace)
    if image is None:
        raise VolumeError(
            f"no image is known: no trainer pod is in namespace {wanted.namespace}, and no operator could be asked; "
            "give --image, that of your trainers or any with Python 3.11, such as python:3.12-slim"
        )
    return replace(wanted, image=image)


async def _create(api: Api, wanted: Wanted) -> Object:
    name = f"lmj-volume-{secrets.token_hex(4)}"
    # Deleted by whoever is told to end while this is asked for: the call is let finish.
    asked = asyncio.ensure_future(api.create(PODS, build(wanted, name, this_process())))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        with suppress(ApiError):
            pod = await asked
            await api.delete(PODS, wanted.namespace, name, uid=pod["metadata"]["uid"], grace=0)
        raise


async def _clear(api: Api, namespace: str) -> None:
    """Remove what earlier commands left. It is no trouble of this one when that fails."""
    with suppress(ApiError):
        pods = await api.list(PODS, namespace, {"labelSelector": f"{HELPER}={VOLUME}"})
        for pod in left_over(pods["items"]):
            with suppress(ApiError):
                await api.delete(PODS, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace=1)


async def _started(api: Api, made: Object, seconds: float, say: Callable[[str], None]) -> None:
    """Until it runs. Raises VolumeError with what keeps it."""
    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    begun, told, why = time.monotonic(), "", None
    while True:
        pod = await api.get(PODS, namespace, name)
        if pod is None:
            raise VolumeError(f"pod {namespace}/{name}: somebody deleted it while it started")
        if starting.has_started(pod):
            return
        if (over := starting.has_ended(pod)) is not None:
            raise VolumeError(f"pod {namespace}/{name} does not start: {over}")
        waited = time.monotonic() - begun
        if waited > min(SAY_SECONDS, seconds):
            why = starting.waits_for(pod) or await _warned(api, pod)
            if waited > seconds:
                raise VolumeError(
                    f"pod {namespace}/{name} has not started after {seconds:g} s: {why or 'no reason is known'}; "
                    "what places it (node selectors, tolerations) can be given by --template, more time by --timeout"
                )
            if why and why != told:
                say(f"the pod waits: {why}")
                told = why
        await asyncio.sleep(POLL_SECONDS if waited < SAY_SECONDS else 2 * POLL_SECONDS)


async def _warned(api: Api, pod: Object) -> str | None:
    query = {"fieldSelector": f"involvedObject.uid={pod['metadata']['uid']}", "limit": "100"}
    with suppress(ApiError):
        return starting.warned((await api.list(EVENTS, pod["metadata"]["namespace"], query))["items"])
    return None


async def _delete(api: Api, pod: Object, say: Callable[[str], None]) -> None:
    """Also when the command is told to end: that is waited for."""
    meta = pod["metadata"]
    deleting = asyncio.ensure_future(api.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace=1))
    stopped = False
    while not deleting.done():
        try:
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(deleting)
        except asyncio.CancelledError:
            stopped = True
        except TimeoutError:
            deleting.cancel()
        except ApiError:
            break
    if deleting.cancelled() or (deleting.done() and deleting.exception() is not None):
        why = "no answer" if deleting.cancelled() else deleting.exception()
        say(f"pod {meta['namespace']}/{meta['name']} was not deleted ({why}); it ends by itself: kubectl delete pod removes it")
    if stopped:
        raise asyncio.CancelledError


def _refused(error: ApiError) -> str:
    if error.status == 403:
        return f"{error.message or error}; rights that are needed: create, get, list and delete pods, create and get pods/exec"
    return str(error)
