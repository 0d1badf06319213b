"""A model with and without its adapter on held-out rows: greedy answers, and the loss per token.

Rows are tokenised and labelled by the trainer's own code, so that both speak of the same tokens.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.trainer.data.formats import Row
from tunesmith_worker.trainer.data.rows import read_rows
from tunesmith_worker.trainer.data.tokens import IGNORED, tokenize_rows

Untyped = Any  # Any: transformers and peft are not typed

BATCH = 16
PLAIN_PROMPT_TOKENS = 16
"""How much of a plain text is given as its beginning; a chat row brings its own prompt."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What one model does on the held-out rows."""

    loss: float
    """Mean over the tokens that carry loss, in nats."""
    answers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    prompts: tuple[str, ...]
    expected: tuple[str, ...]
    base: Scores
    tuned: Scores
    num_rows: int
    """Held-out rows that the losses are over."""
    parameters: int
    """Of the base model."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    question: str | None
    """What was asked, for people; None: `ids` say it."""
    ids: list[int]
    labels: list[int]

    def split(self) -> tuple[list[int], list[int]]:
        """What is asked and what should follow: the last trained span, an answer."""
        end = len(self.ids)
        while end > 0 and self.labels[end - 1] == IGNORED:
            end -= 1
        start = end
        while start > 0 and self.labels[start - 1] != IGNORED:
            start -= 1
        if start <= 1:  # plain text: everything but the first token is trained
            start = min(PLAIN_PROMPT_TOKENS, end - 1)
        return self.ids[:start], self.ids[start:end]


def compare(
    base: str, adapter: Path, held_out: Path, *, num_answers: int | None, max_new_tokens: int
) -> Comparison:
    """`base` is a folder or a hub id. Answers to the first `num_answers` rows (None: to all);
    the loss is over all of them."""
    transformers.utils.logging.disable_progress_bar()
    # generate() asks peft for an attribute that transformers has renamed: nothing to act on.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
    # As for trainers: two busy-waiting threads on two shared cores are slower than one.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="auto").to(device)
    parameters = sum(weight.numel() for weight in loaded.parameters())
    model = peft.PeftModel.from_pretrained(loaded, str(adapter)).eval()
    rows = _read(held_out, tokenizer, model)
    asked = [row.split() for row in rows[:num_answers]]

    def scores() -> Scores:
        with torch.inference_mode():
            answers = _answers(model, tokenizer, [ids for ids, _ in asked], max_new_tokens)
            return Scores(loss=_loss(model, rows), answers=tuple(answers))

    tuned = scores()
    with model.disable_adapter():
        untuned = scores()
    return Comparison(
        prompts=tuple(
            row.question or _text(tokenizer, ids)
            for row, (ids, _) in zip(rows, asked, strict=False)
        ),
        expected=tuple(_text(tokenizer, ids) for _, ids in asked),
        base=untuned,
        tuned=tuned,
        num_rows=len(rows),
        parameters=parameters,
    )


def _read(file: Path, tokenizer: Untyped, model: Untyped) -> list[_Row]:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2048
    plan = DataPlan(
        # As the trainer settles it, so that both leave out the same rows.
        max_seq_length=min(context, 2048),
        overlong="drop",
        assistant_only_loss=True,
        packing=False,
    )
    vocabulary = model.get_input_embeddings().num_embeddings
    found = []
    for row in read_rows(file).rows:
        try:
            one = tokenize_rows([row], tokenizer, plan, name=file.name, vocabulary=vocabulary)
        except DataError:  # too long, or nothing to learn: the job's events have told
            continue
        for example in one.dataset.to_list():
            found.append(
                _Row(question=_question(row), ids=example["input_ids"], labels=example["labels"])
            )
    return found


def _question(row: Row) -> str | None:
    asked = [m.content for m in row.messages or () if m.role == "user" and m.content]
    return asked[-1] if asked else row.prompt or None


def _loss(model: Untyped, rows: Sequence[_Row]) -> float:
    total, tokens = 0.0, 0
    for batch in _batches(rows):
        width = max(len(row.ids) for row in batch)
        ids_BT = _padded([row.ids for row in batch], width, 0, model.device)
        labels_BT = _padded([row.labels for row in batch], width, IGNORED, model.device)
        mask_BT = _padded([[1] * len(row.ids) for row in batch], width, 0, model.device)
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
        total += float(
            torch.nn.functional.cross_entropy(
                logits_BTV[:, :-1].flatten(0, 1).float(),
                labels_BT[:, 1:].flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
        )
        tokens += int((labels_BT[:, 1:] != IGNORED).sum())
    return total / tokens


def _answers(
    model: Untyped, tokenizer: Untyped, prompts: Sequence[list[int]], max_new_tokens: int
) -> Iterator[str]:
    """Greedy; prompts are padded on the left, so that all of a batch answer at the same place."""
    stops = model.generation_config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    for batch in _batches(prompts):
        width = max(len(ids) for ids in batch)
        left = [[tokenizer.pad_token_id] * (width - len(ids)) + ids for ids in batch]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in batch]
        generated = model.generate(
            input_ids=torch.tensor(left, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=[i for i in {*stops, tokenizer.eos_token_id} if i is not None],
            pad_token_id=tokenizer.pad_token_id,
        )
        yield from (_text(tokenizer, ids) for ids in generated[:, width:].tolist())


def _text(tokenizer: Untyped, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text.strip()


def _padded(rows: Sequence[list[int]], width: int, fill: int, device: Untyped) -> torch.Tensor:
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], device=device)


def _batches(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # Any: rows or prompts
    for first in range(0, len(rows), BATCH):
        yield rows[first : first + BATCH]
