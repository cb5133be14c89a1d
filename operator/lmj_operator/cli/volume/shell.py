"""``lmj shell``: look around on a volume of a cluster."""

from typing import Annotated

import typer

from lmj_operator.cli.volume import options


def shell(
    source: Annotated[str, typer.Argument(help="The volume, or a folder of it, as pvc://CLAIM/PATH.", metavar="PVC")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, after --.", metavar="[-- COMMAND...]", show_default="a shell")
    ] = None,
    namespace: options.NamespaceOption = None,
    context: options.ContextOption = None,
    image: options.ImageOption = None,
    template: options.TemplateOption = None,
    seconds: options.TimeoutOption = options.START_SECONDS,
) -> None:
    """Open a shell in a pod that mounts a PersistentVolumeClaim, or run a command there: lmj shell pvc://reviews/data -- ls -l.

    It begins in the folder, runs as the user that trainer pods run as, and ends with the exit code of the command. The pod goes with it.
    """
    import sys

    from lmj_operator.cli.volume.running import run
    from lmj_operator.client.volume.shell import shell as begin

    place = options.place(source)
    pod = options.wanted(place.claim, image, template, memory=None)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    code = run(begin(options.cluster(namespace, context, seconds), pod, place, list(command or ()), say))
    raise typer.Exit(code)
