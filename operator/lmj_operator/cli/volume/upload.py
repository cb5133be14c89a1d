"""``lmj upload``: files of this machine to a volume of a cluster."""

import time
from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.cli.volume import options


def upload(
    source: Annotated[Path, typer.Argument(help="The file, or the folder whose files go.", metavar="FILE|DIR")],
    target: Annotated[str, typer.Argument(help="Where to, as pvc://CLAIM/PATH; a file goes into a folder PATH/.", metavar="PVC")],
    namespace: options.NamespaceOption = None,
    context: options.ContextOption = None,
    image: options.ImageOption = None,
    template: options.TemplateOption = None,
    seconds: options.TimeoutOption = options.START_SECONDS,
) -> None:
    """Copy files to a PersistentVolumeClaim, by a pod that is there meanwhile: lmj upload data pvc://reviews/data -n team.

    What is there already with the same SHA-256 is left alone, and a file that was cut off goes on from where it ended. Links in a folder are
    left out.
    """
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.volume.progress import progress, summary
    from lmj_operator.cli.volume.running import GOES_ON, run
    from lmj_operator.client.volume.copying import upload as copy
    from lmj_operator.client.volume.far.tree import TreeError
    from lmj_operator.client.volume.source import source_of

    place = options.place(target)
    try:
        files = source_of(source)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except TreeError as error:
        raise CommandError(str(error)) from error
    pod = options.wanted(place.claim, image, template)
    begun = time.monotonic()
    with progress() as watcher:
        tally, there = run(copy(options.cluster(namespace, context, seconds), pod, files, place, watcher), GOES_ON)
    typer.echo(summary("uploaded", tally, f"to {there}", time.monotonic() - begun))
