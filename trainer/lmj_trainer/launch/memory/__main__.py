"""``python -m lmj_trainer.launch.memory SCRIPT ...``: what ``python SCRIPT ...`` does, with snapshots in memory."""

import os
import sys

from lmj_trainer.launch import interpreter

if __name__ == "__main__":
    interpreter.become(sys.argv[1:], dict(os.environ))
