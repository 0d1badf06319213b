"""A model folder without weights: the config of a tiny Llama, and a tokenizer made for the data.

Training from scratch needs no more. Plain JSON files; knows nothing of what the text is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 1024
"""Enough for each name of the demo's world to become one or two tokens."""
CONTEXT = 256
"""Tokens; the longest row has about 60."""

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML."""


def write_architecture(folder: Path, texts: Iterable[str]) -> None:
    """Make `folder` with config.json and a byte-level BPE tokenizer trained on `texts`."""
    folder.mkdir(parents=True)
    tokenizer = _train_tokenizer(texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.08,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": tokenizer.token_to_id(END),
            "pad_token_id": tokenizer.token_to_id(PAD),
        },
    )


def _train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
