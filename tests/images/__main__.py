"""``python -m images build|save|test``: see the package."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError, Unavailable

from images.build import IMAGES, build, tag
from images.docker import docker, say
from images.quickstart import quickstart


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: it failed; 77: this machine cannot, for the reason that is printed."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # the daemon that was started ends with us
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    try:
        with docker() as daemon:
            if arguments.command == "build":
                for image in arguments.images or IMAGES:
                    build(daemon, image, arguments.base, arguments.torch_index)
            elif arguments.command == "save":
                for image in arguments.images:
                    build(daemon, image)
                daemon("save", "--output", arguments.file, *map(tag, arguments.images), seconds=1800)
                say(f"{arguments.file}: {arguments.file.stat().st_size / 1e6:.0f} MB")
            else:
                say(f"test accuracy {quickstart(daemon, build(daemon, 'trainer')):.4f}")
    except Unavailable as error:
        print(f"images: cannot be built here: {error}", file=sys.stderr)
        return 77
    except ClusterError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="images", description="Build and try the project's images.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build them (default: both) and print their sizes")
    building.add_argument("images", nargs="*", metavar="operator|trainer")
    building.add_argument("--base", help="base image (default: BASE_IMAGE of the environment, else one that can be had)")
    building.add_argument("--torch-index", default="", help="package index for torch (default: what uv.lock says, with CUDA)")
    saving = commands.add_parser("save", help="write an archive of images, which ctr images import reads")
    saving.add_argument("file", type=Path)
    saving.add_argument("images", nargs="+", choices=IMAGES)
    commands.add_parser("test", help="run the quickstart inside the trainer image")
    return parser


if __name__ == "__main__":
    sys.exit(main())
