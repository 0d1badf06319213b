"""Task that our trainer and stock TRL train in grpo.py: model, prompts, completion lengths,
reward."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu.models import CONFIGS, random_model
from benchmarks.sft_side import PROJECTIONS, make_model

Untyped = Any  # Any: transformers and PEFT are not typed

RANK, ALPHA, RATE, SEED = 32, 16, 1e-4, 3
GROUP = 8
SHORTEST = 16
"""Shortest ragged completion, in tokens."""
_END = 1
"""Token that ends a completion of forced length."""


@dataclass(frozen=True, kw_only=True)
class Task:
    side: str
    dtype: str
    tuning: str
    prompt_tokens: int
    new_tokens: int
    ragged: bool
    steps: int
    """Number of steps, including warm-up."""
    model: str = "llama-12m"
    """Name of the model: `llama-12m` (the model of sft.py) or a name in gpu/models.py."""
    prompts_per_step: int = 2

    @property
    def completions(self) -> int:
        return self.prompts_per_step * GROUP

    @property
    def vocabulary(self) -> int:
        return 8192 if self.model == "llama-12m" else int(CONFIGS[self.model]().vocab_size)

    @property
    def autocast(self) -> bool:
        return self.side == "stock-autocast"

    @property
    def weights(self) -> torch.dtype:
        full_precision = self.dtype == "float32" or self.autocast
        return torch.float32 if full_precision else torch.bfloat16

    def prompts(self) -> list[list[int]]:
        draw = random.Random(1)
        count, most = self.prompts_per_step * self.steps, self.vocabulary
        return [[draw.randrange(3, most) for _ in range(self.prompt_tokens)] for _ in range(count)]

    def lengths(self, step: int) -> list[int]:
        """Return the number of tokens of each completion of a step.

        With `ragged`, the lengths are sampled (log-uniform); otherwise every length is
        `new_tokens`."""
        if not self.ragged:
            return [self.new_tokens] * self.completions
        draw = random.Random(step)
        low, high = math.log(SHORTEST), math.log(self.new_tokens)
        return [round(math.exp(draw.uniform(low, high))) for _ in range(self.completions)]


def even_share(
    prompts: Sequence[str], completions: Sequence[str], completion_ids: Sequence[Sequence[int]],
    **_: object,
) -> list[float]:  # fmt: skip
    """Reward for both trainers: the share of a completion's tokens that have an even id."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def base_model(task: Task) -> Untyped:
    if task.model == "llama-12m":
        model = make_model(task.weights)
    else:
        model = random_model(task.model, find_device(), task.weights)
    model.config.eos_token_id = model.generation_config.eos_token_id = _END
    return model


def find_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tokenizer(vocabulary: int) -> Untyped:
    """Make a tokenizer whose words are token ids. Special tokens are not numbers, because
    tokenizers also find special tokens inside words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {"<pad>": 0, "<end>": _END} | {str(i): i for i in range(2, vocabulary)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>"
    )


def text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def stock_model(task: Task) -> Untyped:
    model = base_model(task)
    if task.tuning == "full":
        return model
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules=PROJECTIONS
    )
    torch.manual_seed(1)
    return peft.get_peft_model(model, lora)
