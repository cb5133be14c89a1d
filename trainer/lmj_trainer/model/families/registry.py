"""The families, by ``model_type``."""

from lmj_api.spec import Architecture
from lmj_trainer.model.families.decoders import GPT2, LLAMA
from lmj_trainer.model.families.encoders import BERT, DISTILBERT, ELECTRA, ROBERTA
from lmj_trainer.model.families.family import Family

FAMILIES: dict[str, Family] = {
    Architecture.BERT: BERT,
    Architecture.DISTILBERT: DISTILBERT,
    Architecture.ROBERTA: ROBERTA,
    Architecture.ELECTRA: ELECTRA,
    Architecture.GPT2: GPT2,
    Architecture.LLAMA: LLAMA,
    Architecture.MISTRAL: LLAMA,
    Architecture.QWEN2: LLAMA,
}
