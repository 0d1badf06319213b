"""Rollout engine for model families that the native engine does not support.

transformers' `generate` computes the logits, and caches keys and values in the model's own way.
Tokens are sampled by the same code as in the native engine.

Equal prompts in a batch are computed once if the model's cache has only keys and values. The model
never reads padding. If the shortest prompt of a batch has n tokens, the first forward pass computes
n tokens of every prompt. In the next steps, a row with a longer prompt continues with the rest of
its prompt, while other rows already sample. When many rows have ended, `generate` starts again with
the unfinished rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tunesmith_worker.engine.memory.model_shape import read_shape

from .figures import PhaseClock, RolloutFigures
from .plan import MAX_ROWS, USABLE_SHARE, RolloutDoesNotFit, RolloutPlan
from .protocol import (
    Completion,
    EngineName,
    Interrupted,
    OnCompletion,
    Request,
    UnusableRequest,
)
from .rows import Row, sample_rows
from .sampling import Uniforms
from .stopping import StopChecker
from .weights import Layout

Untyped = Any  # Any: transformers is not typed


_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
SLOWER = "2 to 8 times"
"""Time of a rollout by this engine, as a multiple of the native engine's time
(docs/contributing/log/rollouts.md)."""


class StockEngine:
    """`ModelEngine` for any causal language model of transformers, with or without PEFT's LoRA.

    The adapter stays separate from the base weights: nothing is merged or copied."""

    name: EngineName = "transformers"
    samples_from_uniforms = True
    follows_dtype = True

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer` is required for requests with stop texts."""
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
        self._own_cache = False
        """True if the model's cache has more than keys and values."""
        self.figures = RolloutFigures()
        """Times, token counts and memory of the last `generate` call."""
        self.interrupted: Callable[[], bool] = lambda: False
        """Function that is called before each step; generation raises Interrupted if it returns
        True."""

    @property
    def weights(self) -> Layout:
        return self._plan.weights

    @property
    def batch_invariant(self) -> bool:
        """True for fp32 models: rounding is too small to make tokens depend on the batch size."""
        return bool(self._model.dtype == torch.float32)

    @property
    def stable_length(self) -> int | None:
        """Greatest sequence length before the RoPE frequencies change; None if they never
        change."""
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

        Raises UnusableRequest before any computation. Also raises NotFinite, Interrupted, and
        exceptions of `on_completion`."""
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

            try:
                for batch in _similar_lengths(rows, self._plan.max_rows):
                    while batch:
                        self._run(model, batch, on_end)
                        batch = [row for row in batch if row.completion is None]
            finally:
                for row in rows:
                    row.release()
        figures.generated_tokens = sum(len(row.tokens) for row in rows)
        return [row.completion for row in rows if row.completion is not None]

    def start(self) -> None:
        """Do nothing, because the engine needs nothing besides the model."""

    def close(self) -> None:
        """Do nothing, because the engine keeps no memory between calls."""

    def _run(self, model: Untyped, batch: Sequence[Row], on_end: Callable[[Row], None]) -> None:
        known = [(*row.request.prompt_ids, *row.tokens) for row in batch]
        start = min(map(len, known))
        ids = torch.tensor([tokens[:start] for tokens in known], device=model.device)

        def choose(now: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            """Choose a token for each row. Return scores [B, V] in which the chosen token has the
            highest score, so that `generate` takes this token."""
            if self.interrupted():
                raise Interrupted("generation was interrupted")
            self.figures.decode_steps += 1
            self.figures.row_steps += len(batch)
            place = now.shape[1]
            live = [i for i, row in enumerate(batch) if _samples_at(row, place)]
            if live:
                sample_rows([batch[i] for i in live], logits[live].float(), on_end)
            tokens = [_token_at(row, place) for row in batch]
            chosen = torch.tensor(tokens, device=logits.device)[:, None]
            return torch.full_like(logits, -torch.inf).scatter_(1, chosen, 0.0)

        def ended(now: torch.Tensor, _: Untyped, **__: Untyped) -> torch.Tensor:
            done = [row.completion is not None for row in batch]
            if all(done) or _is_worth_restarting(batch, now.shape[1]):
                return torch.ones(len(batch), dtype=torch.bool, device=now.device)
            return torch.zeros(len(batch), dtype=torch.bool, device=now.device)

        shared = self._shared_cache(model, ids)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **({} if shared is None else {"past_key_values": shared}),
            max_new_tokens=max(_longest(row) for row in batch) - start,
            logits_processor=transformers.LogitsProcessorList([choose]),
            stopping_criteria=transformers.StoppingCriteriaList([ended]),
        )

    def _shared_cache(self, model: Untyped, ids: torch.Tensor) -> Untyped:
        """Return the key/value cache of rows [B, T], for all tokens except the last of each row.
        Equal rows are computed once. Return None if all rows differ, or if the model's cache has
        more than keys and values."""
        if ids.shape[1] == 1 or self._own_cache or model.base_model is model:
            return None
        prefixes, places = ids[:, :-1].unique(dim=0, return_inverse=True)
        if len(prefixes) == len(ids):
            return None
        output = model.base_model(input_ids=prefixes, use_cache=True)
        # Mamba returns cache_params instead.
        cache: Untyped = getattr(output, "past_key_values", None)
        if type(cache) is not DynamicCache or any(type(x) not in _LAYERS for x in cache.layers):
            self._own_cache = True
            return None
        cache.batch_select_indices(places)
        return cache


def _longest(row: Row) -> int:
    return len(row.request.prompt_ids) + row.request.max_tokens


def _samples_at(row: Row, place: int) -> bool:
    return row.completion is None and place >= len(row.request.prompt_ids)


def _token_at(row: Row, place: int) -> int:
    prompt = row.request.prompt_ids
    if place < len(prompt):
        return prompt[place]
    return row.tokens[min(place - len(prompt), len(row.tokens) - 1)]


def _is_worth_restarting(batch: Sequence[Row], length: int) -> bool:
    """Return True if a restart with only the unfinished rows computes fewer tokens.

    A restart computes all earlier tokens of the unfinished rows again. Without a restart, every
    step computes a useless token for each ended row.
    """
    live = [row for row in batch if row.completion is None]
    steps = max((_longest(row) - length for row in live), default=0)
    return len(live) * length < (len(batch) - len(live)) * steps


@contextmanager
def _ready_to_generate(model: Untyped) -> Iterator[Untyped]:
    """Within this block, put a model into evaluation mode and give it neutral generation settings.

    The generation settings in the model's folder are ignored, because for example a repetition
    penalty would change the logits.
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


def _similar_lengths(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """Yield batches of at most `size` rows, sorted by the length of their prompts.

    In a batch, prompt lengths differ by at most half the length of the longest completion. If the
    lengths differ by more, two batches need fewer steps than one.
    """
    ordered = sorted(rows, key=lambda row: len(row.request.prompt_ids))
    batch: list[Row] = []
    for row in ordered:
        if batch:
            spread = len(row.request.prompt_ids) - len(batch[0].request.prompt_ids)
            longest = max(other.request.max_tokens for other in batch)
            if len(batch) == size or spread > longest // 2:
                yield batch
                batch = []
        batch.append(row)
    if batch:
        yield batch


def plan_stock_rollout(
    model: Untyped, *, rows: int, prompt_tokens: int, max_tokens: int, free: int
) -> RolloutPlan:
    """Plan a rollout by transformers that needs at most `free` bytes; see `plan_rollout`.

    The plan assumes that every layer caches keys and values. Raises RolloutDoesNotFit.
    """
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
        reason="transformers computes with the training weights; the adapter stays separate",
        row_bytes=row,
        free_bytes=free,
    )
