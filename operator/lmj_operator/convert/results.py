"""Where a converted job's output folder is: on a volume that all of its pods can write."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from lmj_operator.convert.fields import Object, mapping, named
from lmj_operator.convert.notes import Notes

PLACEHOLDER: Final = "fill-in://a-folder-on-a-volume-that-all-pods-share"
"""An output path that no command takes, because it is none."""
_SHARED: Final = ("persistentVolumeClaim", "nfs", "azureFile", "cephfs", "csi")
_OPTIONS: Final = ("--output_dir", "--output-dir")
_LIKELY: Final = ("output", "result", "checkpoint", "ckpt", "save", "model")


def output_path(name: str, pod_spec: Object, args: Sequence[str], notes: Notes, where: str) -> str:
    """The output folder of the job ``name``: where its script saves, or a folder on a volume that can be written; else a placeholder."""
    saved = _saved(args)
    mounts = _writable(pod_spec, where)
    holding = [mount for mount in mounts if saved is not None and PurePosixPath(saved).is_relative_to(mount)]
    if saved is not None and saved.startswith("/") and holding:
        notes.changed("spec.output.path", f"it is {saved}, where the script saves")
        notes.check(
            "spec.command.checkpoints",
            f"a script with the Trainer of transformers goes on from its newest checkpoint when this is {saved}",
        )
        return saved
    if saved is not None:
        notes.check(f"{where}: {saved}", "the script saves there, which is on no volume that all pods share and can write")
    if not mounts:
        notes.fill_in(
            "spec.output.path",
            f"no volume of the pods can be written by all of them: write output: {{path: {name}}} and storage: {{output: {{size: 10Gi}}}},"
            " or the claimName of a claim",
        )
        return PLACEHOLDER
    likely = [mount for mount in mounts if any(word in mount.lower() for word in _LIKELY)]
    path = str(PurePosixPath((likely or mounts)[0]) / name)
    notes.changed("spec.output.path", f"{path}, on a volume that all pods share; LMJ_OUTPUT_DIR says it to the script")
    return path


def _saved(args: Sequence[str]) -> str | None:
    for index, word in enumerate(args):
        option, equals, value = word.partition("=")
        if option in _OPTIONS:
            return value if equals else (args[index + 1] if index + 1 < len(args) else None)
    return None


def _writable(spec: Object, where: str) -> list[str]:
    """Where the script's container has volumes that all pods share and can write."""
    shared: set[str] = set()
    for volume in named(spec, "volumes", where):
        for kind in _SHARED:
            if kind in volume and not mapping(volume, kind, where).get("readOnly"):
                shared.add(volume["name"])
    container = next(iter(named(spec, "containers", where)), {})
    return [
        mount["mountPath"]
        for mount in named(container, "volumeMounts", where)
        if mount["name"] in shared
        and isinstance(mount.get("mountPath"), str)
        and not mount.get("readOnly")
        and "subPathExpr" not in mount
    ]
