"""What a model's folder says of the data that it was trained on, so that ``lmj evaluate`` need not be told again."""

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from lmj_api.base import Message
from lmj_api.spec import Dataset
from lmj_trainer.errors import UserError

FILE = "lmj.json"
_MOST = 1 << 20


class Trained(Message):
    """Columns and length of the training rows. The folder of another program says nothing, so the usual names are taken."""

    model_config = ConfigDict(extra="ignore")

    text: Annotated[list[str], Field(min_length=1, max_length=2)] = ["text"]  # noqa: RUF012 - pydantic copies it
    """Column of the text, or the two of a pair."""
    label: str | None = "label"
    """Column of the label; None: of a task that has none."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Tokens at which rows were cut; None: not known."""
    packing: bool = False
    """Texts were put end to end, in rows of ``max_length``."""
    mlm_probability: float | None = None
    """The part of tokens that were hidden; None: none were."""
    seed: int = 0
    """What decides which tokens are hidden."""
    python: str | None = None
    """The user's class that made the model, and its file in the folder; None: the model is one of transformers."""


def write_trained(folder: Path, dataset: Dataset, seed: int | None = None) -> None:
    """Leave it in the model's ``folder``. ``seed``: of a task that hides tokens."""
    trained = Trained(text=dataset.columns, label=dataset.label, max_length=dataset.max_length, packing=dataset.packing)
    if seed is not None:
        trained = trained.model_copy(update={"mlm_probability": dataset.masked_part, "seed": seed})
    left_out = {"python"} if seed is not None else {"python", *_HIDING}
    _write(folder, trained, left_out if dataset.packing else left_out | {"packing"})


def write_own(folder: Path, file: str, name: str) -> None:
    """The same of a model of the user's class ``name``, of whose ``file`` there is a copy."""
    _write(folder, Trained(python=f"{Path(file).name}:{name}", label=None), {"packing", *_HIDING})


_HIDING = ("mlm_probability", "seed")


def _write(folder: Path, trained: Trained, left_out: set[str]) -> None:
    (folder / FILE).write_text(trained.model_dump_json(by_alias=True, exclude=left_out) + "\n", encoding="utf-8")


def read_trained(folder: Path) -> Trained:
    """What the model's ``folder`` says. UserError: the file is damaged."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            return Trained.model_validate_json(file.read(_MOST))
    except (FileNotFoundError, NotADirectoryError):
        return Trained()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path} is damaged ({where}: {first['msg']}): remove it, and name the columns by --text and --label"
        ) from error
