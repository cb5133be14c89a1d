"""Which files of a model have weights that are read, and what to do with others. Safetensors alone are: a pickle runs code when it is loaded."""

from collections.abc import Iterable

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""A model's folder has one of them, as save_pretrained writes it."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CONVERT = (
    "load it where you trust it, and save the model with save_pretrained, or its state_dict as model.safetensors with "
    "safetensors.torch.save_file"
)


def lacking(names: Iterable[str]) -> str | None:
    """Why a folder that has files of these ``names`` has no weights that are read, and what to do; None: it has some."""
    there = sorted(names)
    if any(name in WEIGHTS for name in there):
        return None
    # A trainer leaves others beside the weights, as training_args.bin.
    pickles = sorted(filter(_is_pickle, there), key=lambda name: not name.startswith("pytorch_model"))
    if pickles:
        return f"has no model.safetensors, and {pickles[0]} is a pickle, which runs code when it is loaded: {_CONVERT}"
    others = [name for name in there if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if len(others) == 1:
        return f"has no model.safetensors, but {others[0]}: if these are the weights of its config.json, call them so"
    return "has no model.safetensors: save it with save_pretrained"


def not_a_folder(name: str) -> str:
    """What to do where a file called ``name`` was given in place of a model's folder."""
    beside = "beside config.json and the tokenizer's files"
    if _is_pickle(name):
        return f"is a pickle, which runs code when it is loaded: {_CONVERT}, {beside}, and name the folder"
    if name.endswith(".safetensors"):
        return f"is a file: put it {beside}, called model.safetensors, and name the folder"
    return "is a file: name the folder, which save_pretrained wrote"


def _is_pickle(name: str) -> bool:
    return name.endswith(_PICKLES)
