"""The limits of a worker's process."""

import resource

MOST_FILES = 16_384
"""Open files of a worker that has links to a thousand others: each link takes six."""


def allow_files() -> None:
    """Let this process have as many open files as the largest group needs, or as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
