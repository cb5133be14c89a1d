"""A benchmark that is told to end cleans up, however often it is told."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TOLD = """
import signal, sys
from ending import clean_up_when_told
clean_up_when_told()
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    print("all is ended")
"""


def test_who_is_told_again_while_cleaning_up_cleans_up_to_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], cwd=BENCHMARKS, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.returncode) == ("all is ended\n", 130), done.stderr
