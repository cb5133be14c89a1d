"""``lmj operator``: run jobs on a Kubernetes cluster."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.cli.errors import FAILED, CommandError
from lmj_operator.controller import logs

KEYS = Path(".local", "state", "lmj", "agent-keys")
"""Below the home folder; of an operator outside of a cluster."""


def operator(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", envvar="LMJ_NAMESPACES", help="Watch this namespace; may be repeated. Default: all."),
    ] = None,
    trainer_image: Annotated[
        str | None,
        typer.Option("--trainer-image", envvar="LMJ_TRAINER_IMAGE", help="Image of trainer pods whose template names none."),
    ] = None,
    image_pull_policy: Annotated[
        str | None, typer.Option("--image-pull-policy", envvar="LMJ_IMAGE_PULL_POLICY", help="Pull policy of that image.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", envvar="LMJ_LISTEN", metavar="HOST:PORT", help="Where /healthz and /metrics are.")
    ] = "0.0.0.0:8080",
    own_namespace: Annotated[
        str | None,
        typer.Option(
            "--own-namespace", envvar="LMJ_OWN_NAMESPACE", help="Namespace that the operator itself runs in, if it does."
        ),
    ] = None,
    own_label: Annotated[
        list[str] | None,
        typer.Option("--own-label", envvar="LMJ_OWN_LABELS", metavar="KEY=VALUE", help="Labels of the operator's own pods."),
    ] = None,
    agent_keys: Annotated[
        Path | None,
        typer.Option(
            "--agent-keys",
            envvar="LMJ_AGENT_KEYS",
            metavar="FOLDER",
            help="Ed25519 keys (*.pem) with which requests to agents are signed; new pods trust the last by name. "
            "Default: one in ~/.local/state/lmj/agent-keys, made at the first start.",
        ),
    ] = None,
    grace_seconds: Annotated[
        int, typer.Option("--grace-seconds", envvar="LMJ_GRACE_SECONDS", min=10, help="Time of a trainer pod to save and leave.")
    ] = 60,
    log_format: Annotated[str, typer.Option("--log-format", envvar="LMJ_LOG_FORMAT", help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option("--log-level", envvar="LMJ_LOG_LEVEL", help="debug, info or warning.")] = "info",
) -> None:
    """Run the LiveMigrationJobs of a cluster: the one of KUBECONFIG, or the one that this pod is in."""
    if log_format not in ("text", "json"):
        raise CommandError(f"--log-format {log_format}: use text or json")
    if log_level not in ("debug", "info", "warning"):
        raise CommandError(f"--log-level {log_level}: use debug, info or warning")
    chosen = Settings(
        trainer_image=trainer_image,
        image_pull_policy=image_pull_policy,
        namespace=own_namespace,
        grace_seconds=grace_seconds,
    )
    if own_label:
        chosen = replace(chosen, labels=dict(_pair(label) for label in own_label))
    where = _address(listen)
    keys = _keys(agent_keys, own_namespace)
    logs.configure(logs.LogFormat(log_format), log_level)
    _run(tuple(namespace or ()), where, keys, chosen)


def _run(namespaces: tuple[str, ...], where: tuple[str, int], keys: Path, settings: Settings) -> None:
    try:
        # Kopf and the client take a second to import, and other commands do without them.
        import uvloop

        from lmj_operator.controller.one_client import import_one_client

        import_one_client()
        from lmj_operator.controller.operator import Options, StartError, operate
    except ImportError as error:
        raise CommandError(
            f"{error.name} is not installed here: pip install 'livemigrationjob[operator]'", code=FAILED
        ) from error
    try:
        # Thousands of connections: with asyncio's own loop a job costs half as much again.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(operate(Options(namespaces, where, keys, settings)))
    except StartError as error:
        raise CommandError(str(error), code=FAILED) from error


def _keys(folder: Path | None, own_namespace: str | None) -> Path:
    if folder is not None:
        return folder
    if own_namespace is not None:
        raise CommandError("--agent-keys is needed in a cluster: the folder where the Secret with the operator's keys is mounted")
    return Path.home() / KEYS


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CommandError(f"--own-label {text}: write KEY=VALUE")
    return key, value


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise CommandError(f"--listen {text}: write HOST:PORT, as in 0.0.0.0:8080")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104
