"""What the operator's process imports of the package ``kubernetes``."""

import sys
from importlib.util import find_spec, module_from_spec


def import_one_client() -> None:
    """Have the package load the client that is asked for, ``kubernetes.aio``, and not the others.

    Its own ``__init__`` imports all of them, with what their ways to log in need: 18 MB of the operator's memory. For a process of ours
    alone, before anything imports the package: whoever else uses it expects ``kubernetes.client`` to be there. Raises ModuleNotFoundError.
    """
    spec = find_spec("kubernetes")
    if spec is None:
        raise ModuleNotFoundError("No module named 'kubernetes'", name="kubernetes")
    sys.modules.setdefault("kubernetes", module_from_spec(spec))
