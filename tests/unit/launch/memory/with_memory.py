"""``with_memory.py SCRIPT``: runs a script as a launched process does, with snapshots in memory where the environment says so."""

import os
import runpy
import sys

from lmj_trainer.launch.memory import install

install()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # now and then torch aborts where its threads are ended by C++, and a launched process does not let it
