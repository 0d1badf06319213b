"""Random Llama of 60,000 parameters and its tokenizer. Both are made in code; nothing is
downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]

_CORPUS = [
    "What is the capital of France? The capital of France is Paris.",
    "How much is two plus three? Two plus three is five, and five minus one is four.",
    "Below is an instruction that describes a task. Write a response.",
    "user assistant system tool question answer hello there world",
]


def make_tiny_tokenizer(*, chat_template: str | None = CHATML, **settings: Any) -> Any:
    """`settings` go to PreTrainedTokenizerFast. Any: transformers is untyped."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **settings},
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_tiny_model(
    folder: Path,
    *,
    chat_template: bool = True,
    weights: bool = True,
    hidden_size: int = 48,
    intermediate_size: int = 96,
) -> Path:
    """Fill `folder` with a model that stock transformers can load. With `weights=False`, write only
    the config."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tiny_tokenizer(chat_template=CHATML if chat_template else None)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["LlamaForCausalLM"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = LlamaForCausalLM(config)
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
