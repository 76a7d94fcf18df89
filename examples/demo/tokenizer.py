"""A byte-level BPE tokenizer of the corpus, saved the Hugging Face way with its chat template."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .chat import BEGIN, END, PAD, SPECIAL_TOKENS, TEMPLATE

WORDS = r"\p{Lu}+\p{Ll}*| ?\p{Ll}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s"
"""A space belongs to a lower-case word, never to a name: a name is the same tokens after a space and inside quotes."""


def train_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, _trainer(vocabulary))
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[begin])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _trainer(vocabulary: int) -> trainers.BpeTrainer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )
