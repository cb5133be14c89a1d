"""Options that the commands about volumes share."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lmj_operator.client.volume.helper import Cluster
    from lmj_operator.client.volume.manifest import Wanted
    from lmj_operator.client.volume.uri import Place

NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the claim.", show_default="that of the kubeconfig's context"),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig ($KUBECONFIG, ~/.kube/config).", show_default="its own")
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        envvar="LMJ_TRAINER_IMAGE",
        help="Image of the pod; it needs Python 3.11.",
        show_default="that of the trainers in the namespace, or of the operator",
    ),
]
TemplateOption = Annotated[
    Path | None,
    typer.Option(
        "--template",
        metavar="FILE",
        help="A YAML file that is merged over the pod, as template of a job: node selectors, tolerations, volumes.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds that the pod may take to start.")]
START_SECONDS = 300.0


def place(text: str) -> "Place":
    """The place that a person wrote. Raises CommandError."""
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.client.volume.uri import WrongUri, parse

    try:
        return parse(text)
    except WrongUri as error:
        raise CommandError(str(error)) from error


def cluster(namespace: str | None, context: str | None, seconds: float) -> "Cluster":
    """Where, as a person chose it."""
    from lmj_operator.client.volume.helper import Cluster

    return Cluster(context=context, namespace=namespace, start_seconds=seconds)


def wanted(claim: str, image: str | None, template: Path | None, **how: Any) -> "Wanted":
    """The pod, as a person chose it. Raises CommandError."""
    from lmj_operator.client.volume.manifest import Wanted

    return Wanted(claim, "", image, template=None if template is None else _read(template), **how)


def _read(file: Path) -> Mapping[str, Any]:
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.yaml_file import LARGEST, YamlProblem, parse

    try:
        with file.open("rb") as opened:
            found = parse(opened.read(LARGEST + 1))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    except YamlProblem as error:
        raise CommandError(f"{file}: {error}") from error
    if not isinstance(found, Mapping):
        raise CommandError(f"{file}: no pod template: write spec: and below it what is to be merged over the pod's")
    return found
