"""Tokenizers, and rows through them."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmj_api.spec import Architecture, JobSpec, Scratch
from lmj_trainer.data.rows import Rows, as_text
from lmj_trainer.data.source import digest_path
from lmj_trainer.data.split import Split
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.data.wordpiece import ALPHABET, learn_vocabulary
from lmj_trainer.errors import UserError
from lmj_trainer.hub import hub_is_reachable, is_hub_id
from lmj_trainer.wording import one_line

_CHUNK = 1000
"""Rows that are tokenized at a time."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "config.json",
    "chat_template.jinja",
)
"""Files of a model's folder that its tokens can depend on (``config.json``: the tokenizer's class, the token types)."""


VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
"""Files that hold a tokenizer's vocabulary: without one of them transformers makes an empty tokenizer, and says nothing."""


def require_vocabulary(folder: Path) -> None:
    """Raises UserError when the model in ``folder`` has no tokenizer."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise UserError(f"model {folder} has no tokenizer (none of {', '.join(VOCABULARIES)}): save its tokenizer there too")


def tokenizer_key(spec: JobSpec) -> object:
    """What the tokenizer is made of, as JSON; a learned one also depends on the training texts."""
    if spec.model.scratch is not None:
        return ["wordpiece", spec.model.scratch.vocabulary, ALPHABET, _reads_types(spec.model.scratch)]
    source = str(spec.model.source)
    if Path(source).is_dir():
        return ["folder", digest_path(Path(source), FILES)]
    return ["hub", source, spec.model.revision]


def make_tokenizer(spec: JobSpec, train: Rows, ticker: Ticker) -> Any:
    """The transformers tokenizer of the job: learned from the training texts, or the source model's."""
    if spec.model.scratch is not None:
        return _learn(spec.model.scratch, train, spec.dataset.max_length, ticker)
    return load_tokenizer(str(spec.model.source), spec.model.revision)


def load_tokenizer(source: str, revision: str | None = None) -> Any:
    """The tokenizer in the folder, or of the hub id, ``source``. UserError: there is none."""
    if Path(source).is_dir():
        require_vocabulary(Path(source))
    elif is_hub_id(source):
        hub_is_reachable()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"model {source} has no tokenizer that can be loaded: {one_line(error)}") from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise UserError(f"the tokenizer of model {source} has no padding token")
        # As everybody does with GPT-2 and Llama: what stands in the padding is never looked at.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _reads_types(scratch: Scratch) -> bool:
    return scratch.architecture in (Architecture.BERT, Architecture.ELECTRA)


def _learn(scratch: Scratch, train: Rows, max_length: int, ticker: Ticker) -> Any:
    from transformers import BertTokenizer

    vocabulary = learn_vocabulary([_Texts(text, ticker) for text in train.texts], scratch.vocabulary)
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=max_length)
    if not _reads_types(scratch):
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


@dataclass(frozen=True)
class _Texts:
    """A column, chunk by chunk."""

    column: Any
    ticker: Ticker

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.column), _CHUNK):
            self.ticker.tick(f"learning the vocabulary: text {start} of {len(self.column)}")
            yield from map(as_text, self.column.slice(start, _CHUNK).to_pylist())


def reads_types(spec: JobSpec) -> bool:
    """Whether the model tells the two texts of a pair apart by token types (RoBERTa and DistilBERT don't)."""
    if len(spec.dataset.columns) == 1:
        return False
    if spec.model.scratch is not None:
        return _reads_types(spec.model.scratch)
    return type_vocabulary(str(spec.model.source), spec.model.revision) > 1


def type_vocabulary(source: str, revision: str | None) -> int:
    """``type_vocab_size`` of a model's configuration; 0 where it has none."""
    from lmj_trainer.model.config import read_config

    return int(getattr(read_config(source, revision), "type_vocab_size", 0) or 0)


def encode(
    tokenizer: Any,
    rows: Rows,
    max_length: int,
    types: bool,
    ticker: Ticker,
    what: str,
    labels: Callable[[int, Sequence[Any]], NDArray[Any]],
    offsets: bool = False,
) -> Split:
    """``rows`` as tokens, cut at ``max_length``; of a pair the longer text is cut first. Words of a list get a space between them.

    ``labels``: of the rows from the given one on, for each of which there is an entry: its tokens, or with ``offsets`` where each of its
    tokens begins and ends in the text (a special one does so at 0).
    """
    tokens: list[NDArray[np.int32]] = []
    kinds: list[NDArray[np.uint8]] = []
    ids: list[NDArray[Any]] = []
    lengths = np.zeros(len(rows) + 1, dtype=np.int64)
    for start in range(0, len(rows), _CHUNK):
        ticker.tick(f"tokenizing {what}: row {start} of {len(rows)}")
        texts = [[as_text(value) for value in column.slice(start, _CHUNK).to_pylist()] for column in rows.texts]
        encoded = tokenizer(
            *texts,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=types,
            return_offsets_mapping=offsets,
        )
        for place, row in enumerate(encoded["input_ids"], start + 1):
            lengths[place] = len(row)
        tokens.append(np.fromiter((t for row in encoded["input_ids"] for t in row), dtype=np.int32))
        if types:
            kinds.append(np.fromiter((t for row in encoded["token_type_ids"] for t in row), dtype=np.uint8))
        ids.append(labels(start, encoded["offset_mapping" if offsets else "input_ids"]))
    flat = np.concatenate(ids)
    return Split(np.concatenate(tokens), np.concatenate(kinds) if types else None, np.cumsum(lengths), flat, max_length)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """``save_pretrained``, and its settings without the names of this machine's folders."""
    tokenizer.save_pretrained(str(folder))
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings.pop("name_or_path", None)
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
