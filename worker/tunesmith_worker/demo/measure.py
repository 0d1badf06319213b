"""Comparison of a model with and without its adapter on held-out rows: greedy answers and loss.

The trainer's own code tokenises and labels the rows, so both count the same tokens.
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
"""Number of tokens of a plain text that serve as its prompt."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Results of one model on the held-out rows."""

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
    """Number of held-out rows in the losses."""
    parameters: int
    """Number of parameters of the base model."""


@dataclass(frozen=True, kw_only=True)
class _Example:
    question: str | None
    """Question of the row; None if only the token ids contain it."""
    ids: list[int]
    labels: list[int]

    def split(self) -> tuple[list[int], list[int]]:
        """Return the prompt and the expected answer, which is the last span with labels."""
        end = len(self.ids)
        while end > 0 and self.labels[end - 1] == IGNORED:
            end -= 1
        start = end
        while start > 0 and self.labels[start - 1] != IGNORED:
            start -= 1
        if start <= 1:  # plain text: all tokens but the first carry loss
            start = min(PLAIN_PROMPT_TOKENS, end - 1)
        return self.ids[:start], self.ids[start:end]


def compare(
    base: str, adapter: Path, held_out: Path, *, num_answers: int | None, max_new_tokens: int
) -> Comparison:
    """Compare on a file of held-out rows. `base`: folder or Hugging Face id. `num_answers`: number
    of rows to answer (None: all); the loss uses all rows."""
    transformers.utils.logging.disable_progress_bar()
    # generate() makes peft read an attribute that transformers has renamed.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
    # As in the trainer: two busy-waiting threads on two shared cores are slower than one.
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

    def scores() -> Scores:
        with torch.inference_mode():
            answers = _answers(model, tokenizer, [prompt for prompt, _ in pairs], max_new_tokens)
            return Scores(answers=tuple(answers), loss=_loss(model, examples))

    tuned = scores()
    with model.disable_adapter():
        untuned = scores()
    return Comparison(
        prompts=tuple(
            example.question or _text(tokenizer, prompt)
            for example, (prompt, _) in zip(examples, pairs, strict=False)
        ),
        expected=tuple(_text(tokenizer, answer) for _, answer in pairs),
        base=untuned,
        tuned=tuned,
        num_rows=len(examples),
        parameters=parameters,
    )


def _read(file: Path, tokenizer: Untyped, model: Untyped) -> list[_Example]:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2048
    plan = DataPlan(
        max_seq_length=min(context, 2048),  # the trainer's choice, so both drop the same rows
        overlong="drop",
        assistant_only_loss=True,
        packing=False,
    )
    vocabulary = model.get_input_embeddings().num_embeddings
    examples = []
    for row in read_rows(file).rows:
        try:
            tokens = tokenize_rows([row], tokenizer, plan, name=file.name, vocabulary=vocabulary)
        except DataError:  # too long or without loss; the job has reported the row
            continue
        for columns in tokens.dataset.to_list():
            ids, labels = columns["input_ids"], columns["labels"]
            examples.append(_Example(question=_question(row), ids=ids, labels=labels))
    return examples


def _question(row: Row) -> str | None:
    questions = [m.content for m in row.messages or () if m.role == "user" and m.content]
    return questions[-1] if questions else row.prompt or None


def _loss(model: Untyped, examples: Sequence[_Example]) -> float:
    total, tokens = 0.0, 0
    for batch in _batches(examples):
        width = max(len(example.ids) for example in batch)
        ids_BT = _padded([example.ids for example in batch], width, 0, model.device)
        labels_BT = _padded([example.labels for example in batch], width, IGNORED, model.device)
        mask_BT = _padded([[1] * len(example.ids) for example in batch], width, 0, model.device)
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
    """Yield greedy answers. Prompts are padded on the left, so that all answers start together."""
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
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()


def _padded(rows: Sequence[list[int]], width: int, fill: int, device: Untyped) -> torch.Tensor:
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], device=device)


def _batches(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # Any: examples or prompts
    for first in range(0, len(rows), BATCH):
        yield rows[first : first + BATCH]
