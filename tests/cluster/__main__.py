"""``python -m cluster up | down | status | kubeconfig | build [PROGRAM...]``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.binaries import DEFAULT_CACHE, PROGRAMS, Binaries
from cluster.cluster import DEFAULT_RUN, Cluster
from cluster.errors import ClusterError, Unavailable


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 for a failure, 3 where this machine can't run a cluster."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "kubeconfig", "build"])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="what to build (default: all that a cluster needs)")
    parser.add_argument("--name", default="dev", help="clusters with different names run beside each other (default: dev)")
    parser.add_argument("--nodes", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--run", type=Path, default=DEFAULT_RUN, help="folder for the state of clusters")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder for the programs that are built once")
    arguments = parser.parse_args(argv)
    unknown = [program for program in arguments.programs if program not in PROGRAMS or arguments.command != "build"]
    if unknown:
        parser.error(f"{unknown[0]}: build takes names of programs ({', '.join(PROGRAMS)}), other commands take none")
    try:
        cluster = Cluster(arguments.name, arguments.run, arguments.cache)
        if arguments.command == "up":
            cluster.up(arguments.nodes)
            sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
        elif arguments.command == "down":
            cluster.down()
        elif arguments.command == "status":
            sys.stdout.write("\n".join(cluster.status()) + "\n")
        elif arguments.programs:
            for program in arguments.programs:
                Binaries(arguments.cache).path(program)
        elif arguments.command == "build":
            cluster.binaries()
        else:
            sys.stdout.write(f"{cluster.kubeconfig}\n")
    except Unavailable as reason:
        sys.stderr.write(f"no cluster here: {reason}\n")
        return 3
    except ClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
