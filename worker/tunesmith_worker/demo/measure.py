"""Compare a model with and without its adapter on held-out rows: greedy answers and loss.

The trainer's code tokenises and labels the rows, so these losses are comparable with the job's
losses.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.tokens import IGNORED, tokenize_rows

from .results import Comparison, Scores

Untyped = Any  # Any: transformers and peft are not typed

MAX_NEW_TOKENS = 96
"""Maximum tokens per answer; more tokens take too long with a large model on a CPU."""
PLAIN_PROMPT_TOKENS = 16
"""Number of tokens at the start of a plain text that serve as the prompt."""


@dataclass(frozen=True, kw_only=True)
class _Example:
    question: str | None
    ids: list[int]
    labels: list[int]

    def split(self) -> tuple[list[int], list[int]]:
        end = 1 + max(i for i, label in enumerate(self.labels) if label != IGNORED)
        start = 1 + max((i for i in range(end) if self.labels[i] == IGNORED), default=-1)
        if start <= 1:  # plain text: all tokens except the first have labels
            start = min(PLAIN_PROMPT_TOKENS, end - 1)
        return self.ids[:start], self.ids[start:end]


def compare(base: str, adapter: Path, held_out: Path, num_answers: int | None) -> Comparison:
    """Compare base model and adapter on held-out rows.

    `base`: folder or Hugging Face id. `num_answers`: number of rows to answer (None: all). The loss
    uses all rows."""
    transformers.utils.logging.disable_progress_bar()
    # generate() makes peft read an attribute that transformers has renamed.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
    # Half the cores, as in the trainer: on two shared cores, two threads are slower than one.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="auto").to(device)
    parameters = sum(weight.numel() for weight in loaded.parameters())
    model = peft.PeftModel.from_pretrained(loaded, str(adapter)).eval()
    examples = _read(held_out, tokenizer, model)
    pairs = [example.split() for example in examples[:num_answers]]
    prompts = [prompt for prompt, _ in pairs]

    def scores() -> Scores:
        with torch.inference_mode():
            return Scores(answers=_answers(model, tokenizer, prompts), loss=_loss(model, examples))

    tuned = scores()
    with model.disable_adapter():
        untuned = scores()
    questions = zip(examples, _texts(tokenizer, prompts), strict=False)
    return Comparison(
        prompts=[example.question or prompt for example, prompt in questions],
        expected=_texts(tokenizer, [answer for _, answer in pairs]),
        base=untuned,
        tuned=tuned,
        num_rows=len(examples),
        parameters=parameters,
    )


def _read(file: Path, tokenizer: Untyped, model: Untyped) -> list[_Example]:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2048
    plan = DataPlan(
        max_seq_length=min(context, 2048),  # the trainer's limit, so that both drop the same rows
        overlong="drop",
        assistant_only_loss=True,
        packing=False,
    )
    vocabulary = model.get_input_embeddings().num_embeddings
    examples = []
    for row in read_rows(file).rows:
        try:
            tokens = tokenize_rows([row], tokenizer, plan, name=file.name, vocabulary=vocabulary)
        except DataError:  # the row is too long or has no labels; the job reported this
            continue
        turns = [m.content for m in row.messages or () if m.role == "user" and m.content]
        question = turns[-1] if turns else row.prompt or None
        ids, labels = tokens.dataset[0]["input_ids"], tokens.dataset[0]["labels"]
        examples.append(_Example(question=question, ids=ids, labels=labels))
    return examples


def _loss(model: Untyped, examples: Sequence[_Example]) -> float:
    """Return the mean loss of all tokens with labels; the first token of a row has no loss."""
    total, tokens = 0.0, 0
    for example in examples:
        ids_BT = torch.tensor([example.ids], device=model.device)
        labels_BT = torch.tensor([example.labels], device=model.device)
        if count := sum(label != IGNORED for label in example.labels[1:]):
            total += count * float(model(input_ids=ids_BT, labels=labels_BT, use_cache=False).loss)
            tokens += count
    return total / tokens


def _answers(model: Untyped, tokenizer: Untyped, prompts: Sequence[list[int]]) -> list[str]:
    """Return greedy answers.

    Prompts are padded on the left, so all answers start at the same position.
    """
    width = max(len(ids) for ids in prompts)
    padded = [[tokenizer.pad_token_id] * (width - len(ids)) + ids for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    stops = model.generation_config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    generated = model.generate(
        input_ids=torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=[i for i in {*stops, tokenizer.eos_token_id} if i is not None],
        pad_token_id=tokenizer.pad_token_id,
    )
    return _texts(tokenizer, generated[:, width:].tolist())


def _texts(tokenizer: Untyped, rows: Sequence[list[int]]) -> list[str]:
    return [text.strip() for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]
