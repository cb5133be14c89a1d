"""How the pod gets its side: a few words of Python on the command line, which read the rest from standard input."""

import inspect
import json

from lmj_operator.client.volume.far import frames, serve, tree

_LOADER = """
import json, os, sys, types
data = b""
while not data.endswith(b"\\n"):
    data += os.read(0, 1) or sys.exit("no program came")
size, data = int(data), b""
while len(data) < size:
    data += os.read(0, size - len(data)) or sys.exit("no program came")
for name, source in json.loads(data):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def command(root: str) -> list[str]:
    """What is run in the pod for the files below ``root``."""
    return ["python", "-c", _LOADER, root]


def program() -> bytes:
    """What it reads before all else."""
    modules = [[module.__name__, inspect.getsource(module)] for module in (tree, frames, serve)]
    data = json.dumps(modules).encode()
    return b"%d\n" % len(data) + data
