"""``with_memory.py SCRIPT``: runs a script as a launched process does, with snapshots in memory where the environment says so."""

import runpy
import sys

from lmj_trainer.launch.memory import install

install()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
