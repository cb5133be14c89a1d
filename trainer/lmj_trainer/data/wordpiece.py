"""A lowercase WordPiece tokenizer as BERT's, learned from the training texts, the same for the same texts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens; the id is the place."""

ALPHABET = 1000
"""Most characters that are learned (fewer in a small vocabulary: each has two pieces); the rarer ones are unknown."""


def learn_vocabulary(texts: Sequence[Iterable[str]], size: int) -> dict[str, int]:
    """The vocabulary of at most ``size`` pieces. ``texts`` is gone through twice.

    ``tokenizers`` numbers the inner characters (``##x``) in the order of a randomly seeded hash map, and its ties between merges
    follow these numbers: left alone, every process learns another vocabulary. So they are numbered here first, sorted.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    # One of its own: training holds the tokenizer's lock while it asks for texts, and would wait for itself.
    normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in chain.from_iterable(texts):
        counts.update(normalizer.normalize_str(text))
    most = min(ALPHABET, (size - len(SPECIAL)) // 2)
    spaces = {character for character in counts if character.isspace()}
    alphabet = sorted(sorted(counts.keys() - spaces, key=lambda c: (-counts[c], c))[:most])
    known = [*SPECIAL, *alphabet, *(f"##{character}" for character in alphabet)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=known, show_progress=False)
    # The characters that are not learned become spaces, so that no word holds one.
    rare = str.maketrans(dict.fromkeys(counts.keys() - set(alphabet), " "))
    normalized = (normalizer.normalize_str(text).translate(rare) for text in chain.from_iterable(texts))
    tokenizer.train_from_iterator(normalized, trainer)
    return dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
