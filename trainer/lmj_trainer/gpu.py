"""Whether this machine can compute on a GPU, asked of its driver: PyTorch would take seconds to be imported for that."""

import ctypes
import sys
from importlib.metadata import PackageNotFoundError, version

_DRIVER = "libcuda.so.1"


def missing_gpu() -> str | None:
    """Why ``device: CUDA`` cannot work here; None: there is a GPU. Leaves no context behind."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return "PyTorch is not installed"
    if sys.platform != "linux" or "+cpu" in torch:
        return f"this PyTorch ({torch}) is built without CUDA"
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return f"this machine has no NVIDIA driver ({_DRIVER})"
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return f"the NVIDIA driver finds no GPU that this process may use (CUDA error {code})"
    return None if count.value else "the NVIDIA driver shows this process no GPU"
