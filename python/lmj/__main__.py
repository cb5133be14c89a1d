"""``python -m lmj SCRIPT``: what ``lmj run SCRIPT`` becomes. It runs the script as ``python SCRIPT`` does, and tells its mistakes in a line."""

import argparse
import runpy
import sys
from pathlib import Path

from lmj import script
from lmj.errors import JobError, LmjError, RunInterrupted


def main() -> int:
    """The exit code: 0 succeeded, 1 failed, 2 bad input, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="lmj run", allow_abbrev=False)
    parser.add_argument("script", type=Path)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--continue", dest="goes_on", action="store_true")
    given = parser.parse_args()
    file = given.script.absolute()
    script.asked.replicas, script.asked.fresh, script.asked.goes_on = given.replicas, given.fresh, given.goes_on
    sys.argv, sys.path[:0] = [str(file)], [str(file.parent)]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except RunInterrupted as error:
        return _told(error, 130)
    except LmjError as error:
        return _told(error, 2 if isinstance(error, JobError) else 1)
    return 0


def _told(error: BaseException, code: int) -> int:
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
