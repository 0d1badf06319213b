"""Rollout engine for model families that the native engine does not support.

transformers' `generate` computes the logits, with the cache of the model's own class. Tokens are
sampled by the same code as in the native engine. Only prompts of equal length share a batch, so
that the model never reads padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from tunesmith_worker.engine.memory.model_shape import read_shape

from .figures import PhaseClock, RolloutFigures
from .plan import MAX_ROWS, USABLE_SHARE, RolloutDoesNotFit, RolloutPlan
from .protocol import Completion, Interrupted, OnCompletion, Request, UnusableRequest
from .rows import Row, sample_rows
from .sampling import Uniforms
from .stopping import StopChecker

Untyped = Any  # Any: transformers is not typed


class StockEngine:
    """`RolloutEngine` for any causal language model of transformers, with or without PEFT's LoRA.

    The adapter stays separate from the base weights: nothing is merged or copied."""

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer` is required for requests with stop texts."""
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
        self.figures = RolloutFigures()
        """Figures of the last `generate` call."""
        self.interrupted: Callable[[], bool] = lambda: False
        """Function that is called before each step; generation raises Interrupted if it returns
        True."""

    @property
    def batch_invariant(self) -> bool:
        """True for fp32 models: rounding is too small to make tokens depend on the batch size."""
        return bool(self._model.dtype == torch.float32)

    @property
    def stable_length(self) -> int | None:
        """Maximum sequence length with fixed RoPE frequencies; None if the length is unlimited."""
        config = self._model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        for group in (rope, *(value for value in rope.values() if isinstance(value, dict))):
            if group.get("rope_type") in ("dynamic", "longrope"):
                length = group.get("original_max_position_embeddings")
                return int(length or config.max_position_embeddings)
        return None

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Generate completions; see `RolloutEngine`.

        Raises UnusableRequest before any computation, NotFinite, Interrupted, and exceptions of
        `on_completion`."""
        self.figures = figures = RolloutFigures()
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        rows = []
        for i, request in enumerate(requests):
            if not all(0 <= token < vocabulary for token in request.prompt_ids):
                raise UnusableRequest(
                    f"request {i}: prompt_ids must be token ids of the model, 0 to "
                    f"{vocabulary - 1}; got {min(request.prompt_ids)} to {max(request.prompt_ids)}"
                )
            checker = StopChecker(request, self._tokenizer)
            rows.append(Row(i, request, Uniforms(request.seed), checker))
        figures.prefill_tokens = sum(map(len, {row.request.prompt_ids for row in rows}))
        device = self._model.device
        with (
            PhaseClock(figures.decode, device) as clock,
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
            _ready_to_generate(self._model) as model,
        ):

            def on_end(row: Row) -> None:
                if on_completion is not None and row.completion is not None:
                    with clock.during(figures.callback):
                        on_completion(row.index, row.completion)

            for batch in _by_length(rows, self._plan.max_rows):
                self._generate(model, batch, on_end)
        figures.generated_tokens = sum(len(row.tokens) for row in rows)
        return [row.completion for row in rows if row.completion is not None]

    def _generate(
        self, model: Untyped, batch: Sequence[Row], on_end: Callable[[Row], None]
    ) -> None:
        prompts = torch.tensor([row.request.prompt_ids for row in batch], device=model.device)

        def choose(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            """Sample a token for each row, and return scores [B, V] whose maximum is at the sampled
            token."""
            if self.interrupted():
                raise Interrupted("generation was interrupted")
            self.figures.decode_steps += 1
            self.figures.row_steps += len(batch)
            live = [i for i, row in enumerate(batch) if row.completion is None]
            sample_rows([batch[i] for i in live], logits[live].float(), on_end)
            chosen = torch.tensor([[row.tokens[-1]] for row in batch], device=logits.device)
            return torch.full_like(logits, -torch.inf).scatter_(1, chosen, 0.0)

        def ended(ids: torch.Tensor, _: Untyped, **__: Untyped) -> torch.Tensor:
            done = [row.completion is not None for row in batch]
            return torch.tensor(done, device=ids.device)

        try:
            model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=max(row.request.max_tokens for row in batch),
                logits_processor=transformers.LogitsProcessorList([choose]),
                stopping_criteria=transformers.StoppingCriteriaList([ended]),
            )
        finally:
            for row in batch:
                row.release()


@contextmanager
def _ready_to_generate(model: Untyped) -> Iterator[Untyped]:
    """Set a model and its generation settings for `choose`; restore them at the end.

    The settings of the model's folder, for example a repetition penalty, would change the logits.
    """
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    training = [module for module in model.modules() if module.training]
    settings = causal.generation_config
    causal.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    model.eval()
    try:
        yield causal
    finally:
        causal.generation_config = settings
        for module in training:
            module.training = True


def _by_length(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """Yield batches of at most `size` rows whose prompts have the same length."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(len(row.request.prompt_ids), []).append(row)
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def plan_stock_rollout(
    model: Untyped, *, rows: int, prompt_tokens: int, max_tokens: int, free: int, reason: str
) -> RolloutPlan:
    """Plan a rollout by transformers within `free` bytes; see `plan_rollout`.

    `reason`: why the native engine does not support the model. Every layer is planned with a cache
    of keys and values. Raises RolloutDoesNotFit."""
    shape = read_shape(model)
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.dtype.itemsize
    row = per_token * (prompt_tokens + max_tokens) + 4 * shape.vocabulary * 4
    fitting = int(free * USABLE_SHARE) // row
    if fitting < 1:
        raise RolloutDoesNotFit(
            f"one completion of {prompt_tokens} prompt and {max_tokens} completion tokens needs "
            f"{row:,} bytes for its keys and values, but only {int(free * USABLE_SHARE):,} bytes "
            "are free: use shorter completions or prompts"
        )
    return RolloutPlan(
        weights="in_place",
        max_rows=max(1, min(rows, MAX_ROWS, fitting)),
        reason=f"transformers generates, because the rollout engine does not support {reason}",
        row_bytes=row,
        free_bytes=free,
    )
