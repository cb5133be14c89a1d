"""``lmj download``: files of a volume of a cluster to this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.cli.volume import options


def download(
    source: Annotated[str, typer.Argument(help="The file or folder, as pvc://CLAIM/PATH.", metavar="PVC")],
    target: Annotated[Path, typer.Argument(help="The folder that the files go into; it is made.", metavar="DIR")] = Path(),
    namespace: options.NamespaceOption = None,
    context: options.ContextOption = None,
    image: options.ImageOption = None,
    template: options.TemplateOption = None,
    seconds: options.TimeoutOption = options.START_SECONDS,
) -> None:
    """Copy files of a PersistentVolumeClaim to this machine: lmj download pvc://reviews-output/runs/reviews/model model -n team.

    Of a folder what is in it is copied. What is here already with the same SHA-256 is left alone, and a file that was cut off goes on from
    where it ended. Links are left out.
    """
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.volume.progress import progress, summary
    from lmj_operator.cli.volume.running import GOES_ON, run
    from lmj_operator.client.volume.copying import download as copy

    place = options.place(source)
    if target.exists() and not target.is_dir():
        raise CommandError(f"{target}: a file is here; name a folder for the files to go into")
    pod = options.wanted(place.claim, image, template, read_only=True)
    begun = time.monotonic()
    with progress() as watcher:
        tally = run(copy(options.cluster(namespace, context, seconds), pod, place, target, watcher), GOES_ON)
    typer.echo(summary("downloaded", tally, f"to {target}", time.monotonic() - begun))
