"""What a rank computes on."""

import os

import torch

from lmj_api.spec import Device
from lmj_trainer.errors import UserError


def pick_device(wanted: Device, rank: int) -> torch.device:
    """The device of ``rank``; ranks of one machine share its GPUs in turn. Raises UserError when CUDA is asked for and not there."""
    if wanted is Device.CPU or (wanted is Device.AUTO and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("training.device is CUDA, but this rank sees no GPU: set it to Auto or CPU")
    return torch.device("cuda", rank % torch.cuda.device_count())


def make_deterministic(device: torch.device, threads: int) -> None:
    """Equal numbers give equal bits: fixed threads, and on a GPU the deterministic kernels."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Else each tensor that is made is written twice.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
