"""What ends a command about a volume, in one line, and the words for what a pod's side told."""

from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.client.volume.far.frames import Header
from lmj_operator.client.volume.far.tree import shown

_FULL = ("ENOSPC", "EDQUOT")
_DENIED = ("EACCES", "EPERM")


class VolumeError(Exception):
    """What is the matter, where, and what to do."""


class Broken(VolumeError):  # noqa: N818 - it names what is the matter
    """The connection broke: the same may work again."""


def far_error(told: Header, claim: str) -> VolumeError:
    """What the pod's side told in ``told``."""
    text, code, path = shown(str(told.get("text"))), told.get("code"), told.get("path") or "."
    if code in _FULL:
        return VolumeError(f"claim {claim}: the volume is full at {path}: make it larger or remove files, and run the same again")
    if code in _DENIED:
        user = Settings().user
        return VolumeError(
            f"claim {claim}: {path}: permission denied for user {user}, whom trainer pods run as: give it the folder "
            f"(chown {user}), or set securityContext.runAsUser in --template"
        )
    if code == "EROFS":
        return VolumeError(f"claim {claim}: {path}: the volume is mounted read-only: use a claim that can be written")
    return VolumeError(f"claim {claim}: {text}")
