"""A script's state in memory that outlives its processes: snapshots in a folder of tmpfs, and how a script's libraries write them."""

from lmj_trainer.launch.memory.place import Place
from lmj_trainer.launch.memory.trainer_callback import install as _install_trainer


def install() -> None:
    """Have the libraries that the script is going to import take snapshots, where the environment asks for it. Imports none of them.

    Raises ValueError: the environment contradicts itself.
    """
    place = Place.of()
    if place is not None:
        _install_trainer(place)
