"""``lmj.run``: train a job on this machine."""

import asyncio
import os
from typing import TYPE_CHECKING

from lmj.errors import JobError, JobFailed, LmjError, RunError, RunInterrupted
from lmj.job import Job
from lmj.result import Result
from lmj.words import told
from lmj_api.status import Phase

if TYPE_CHECKING:
    from lmj_operator.cli.errors import CommandError


def run(job: Job | str | os.PathLike[str], *, progress: bool = True, fresh: bool = False, goes_on: bool = False) -> Result:
    """Train ``job``, or that in a file, on this machine as ``lmj run`` does, one process group a rank, and wait until it ends.

    ``progress``: tell of it: by a bar in a terminal or a notebook, by lines elsewhere. ``fresh``: start over; what is in the output folder
    is moved into a folder earlier-N there. ``goes_on``: go on from the newest checkpoint with more epochs or steps, or another learning rate.
    Else a job that was interrupted goes on, and one that has succeeded is not trained again.

    It works in notebooks, and in any thread. Ctrl-C (a notebook's interrupt) and SIGTERM take a checkpoint and leave, another Ctrl-C a second
    later leaves at once; in threads other than the main one Python hears no signals, and ``lmj stop`` does the same.

    Raises :class:`lmj.JobError` for a mistake in the job, its data or its model, :class:`lmj.JobFailed` when it fails,
    :class:`lmj.RunInterrupted` when it was told to leave, and :class:`lmj.RunError` when it cannot be run here now.

    >>> import lmj
    >>> result = lmj.run("examples/quickstart.yaml")  # doctest: +SKIP
    >>> result.metrics["accuracy"] > 0.9  # doctest: +SKIP
    True
    """
    from lmj.foreground import Foreground
    from lmj.progress import reporter
    from lmj_operator.cli.errors import CommandError

    ready = (job if isinstance(job, Job) else Job.from_yaml(job)).here()
    try:
        ended = Foreground(ready, reporter(progress), fresh=fresh, goes_on=goes_on).wait()
    except CommandError as error:
        raise translated(error) from None
    except asyncio.CancelledError:
        raise RunInterrupted("interrupted before it trained", None) from None
    result = Result(ended.status, ended.layout.output, ended.seconds)
    if ended.at_once:
        raise RunInterrupted("left at once; the same call goes on from the newest checkpoint", result)
    match result.phase:
        case Phase.SUCCEEDED:
            return result
        case Phase.SUSPENDED:
            raise RunInterrupted(f"{result.message}; the same call resumes", result)
    raise JobFailed(result.message, result)


def translated(error: "CommandError") -> LmjError:
    """What a command would end with."""
    lines = [told(line) for line in error.lines]
    return JobError(*lines) if error.code == 2 else RunError("\n".join(lines))
