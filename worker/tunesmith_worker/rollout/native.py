"""The rollout engine on the training model's own weights.

A batch of rows decodes one token a step. Each prompt is computed once, for all its requests; a row
that ends makes room for the next request, and the batch shrinks when there is none. What a request
gets does not depend on the rows beside it, beyond the last bits of a product.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .architecture import Architecture, read_architecture
from .cache import Prefix, RowCache
from .decoder import Decoder
from .plan import RolloutPlan
from .positions import Positions
from .protocol import Completion, FinishReason, Request, UnusableRequest
from .sampling import Drawn, Seen, Uniforms, draw
from .stopping import StopWatch
from .weights import decoder_weights

Untyped = Any  # Any: transformers is not typed

_PREFILL_TOKENS = 8192
"""Prompts that are computed together have no more tokens than this, unless one alone has."""
_DEAD_SHARE = 0.25
"""Rows that have ended are carried along until they are this share of the batch: to leave them out
costs a copy of what the others have cached."""


@dataclass
class RolloutFigures:
    """Of one call."""

    sync_seconds: float = 0.0
    """CPU time of taking over the weights (and of folding in; unfolding is in the rest)."""
    prefill_tokens: int = 0
    decode_steps: int = 0
    row_steps: int = 0
    """Rows computed, over all steps: those that had ended included."""
    generated_tokens: int = 0
    cache_bytes: int = 0
    """Keys and values, at the most."""
    fold_kept: int = 0
    """Weights whose bits had to be kept while the adapter was folded in."""


@dataclass(eq=False)
class _Row:
    """One request on its way."""

    place: int
    request: Request
    uniforms: Uniforms
    watch: StopWatch
    prefix: Prefix | None = None
    seen: Seen | None = None
    tokens: list[int] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)
    policy: list[float] = field(default_factory=list)
    end: tuple[FinishReason, int | str | None] | None = None

    def completion(self) -> Completion:
        assert self.end is not None
        return Completion(
            token_ids=self.tokens,
            sampling_logprobs=self.sampling,
            policy_logprobs=self.policy,
            finish_reason=self.end[0],
            stop_reason=self.end[1],
        )


class NativeEngine:
    """`RolloutEngine` for a model of transformers, with PEFT's LoRA or without."""

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer`: for requests with stop texts. Raises UnsupportedModel."""
        self._architecture = read_architecture(model)
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
        self.figures = RolloutFigures()
        """Of the last call."""

    @property
    def stable_length(self) -> int | None:
        """See positions.py: completions that end beyond it were drawn from laws that a forward of
        the whole sequence does not have."""
        return _positions(self._architecture).stable_length

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Raises UnusableRequest before anything is computed, and UnsupportedModel."""
        self.figures = RolloutFigures()
        self._check(requests)
        # The model may have changed since the last call: another adapter, a new head or device.
        self._architecture = read_architecture(self._model)
        positions = _positions(self._architecture)
        rows = [
            _Row(place, one, Uniforms(one.seed), StopWatch(one, self._tokenizer))
            for place, one in enumerate(requests)
        ]
        start = time.process_time()
        size = min(self._plan.max_rows, max(1, len(rows)))
        with (
            torch.inference_mode(),
            torch.autocast(self._architecture.device.type, enabled=False),
            decoder_weights(self._architecture, self._plan.weights, size) as weights,
        ):
            self.figures.sync_seconds = time.process_time() - start
            if weights.fold is not None:
                self.figures.fold_kept = weights.fold.kept
            decoder = Decoder(self._architecture, weights, positions)
            _Rollout(self._architecture, decoder, rows, size, positions, self.figures).run()
        self.figures.generated_tokens = sum(len(row.tokens) for row in rows)
        return [row.completion() for row in rows]

    def _check(self, requests: Sequence[Request]) -> None:
        vocabulary = self._architecture.vocabulary
        for place, request in enumerate(requests):
            if not all(0 <= one < vocabulary for one in request.prompt_ids):
                raise UnusableRequest(
                    f"request {place}: prompt_ids must be 0 to {vocabulary - 1}, the model's rows; "
                    f"got {min(request.prompt_ids)} to {max(request.prompt_ids)}"
                )


class _Rollout:
    """One call's batch."""

    def __init__(
        self,
        model: Architecture,
        decoder: Decoder,
        rows: Sequence[_Row],
        size: int,
        positions: Positions,
        figures: RolloutFigures,
    ) -> None:
        self._model, self._decoder, self._positions = model, decoder, positions
        self._size, self._figures = size, figures
        self._queue = _by_prompt(rows)
        self._batch: list[_Row] = []
        """Rows that the cache holds, ended ones among them."""
        self._cache: RowCache | None = None

    def run(self) -> None:
        self._rebuild()
        while self._batch:
            assert self._cache is not None
            newest = [row.tokens[-1] for row in self._batch]
            logits = self._decoder.step(
                torch.tensor(newest, device=self._model.device), self._cache
            )
            self._figures.decode_steps += 1
            self._figures.row_steps += len(self._batch)
            self._figures.cache_bytes = max(self._figures.cache_bytes, self._cache.bytes)
            live = [place for place, row in enumerate(self._batch) if row.end is None]
            if len(live) < len(self._batch):
                logits = logits[torch.tensor(live, device=logits.device)]
            self._draw([self._batch[place] for place in live], logits)
            if self._is_due():
                self._rebuild()

    def _is_due(self) -> bool:
        """Whether the batch is to be put together anew."""
        dead = sum(row.end is not None for row in self._batch)
        if dead == len(self._batch) or dead >= max(1.0, _DEAD_SHARE * len(self._batch)):
            return True
        if self._queue and len(self._batch) - dead <= self._size * (1 - _DEAD_SHARE / 2):
            return True
        if self._positions.stable_length is None:
            return False
        return any(self._in_new_era(row) for row in self._batch if row.end is None)

    def _in_new_era(self, row: _Row) -> bool:
        """Whether the keys that the row has cached are those of other RoPE frequencies than its
        newest token's."""
        assert row.prefix is not None
        length = len(row.request.prompt_ids) + len(row.tokens)
        return self._positions.era(length) != row.prefix.era

    def _rebuild(self) -> None:
        """Without rows that ended, with as many of the queue as there is room for, and with what
        has to be computed anew."""
        order = {id(row): place for place, row in enumerate(self._batch)}
        kept = [row for row in self._batch if row.end is None and not self._in_new_era(row)]
        again = [row for row in self._batch if row.end is None and self._in_new_era(row)]
        self._recompute(again)
        fresh = [row for row in again if row.end is None]
        while len(kept) + len(fresh) < self._size and self._queue:
            joining = self._take(self._size - len(kept) - len(fresh))
            self._start(joining)
            fresh += [row for row in joining if row.end is None]
        rows = kept + fresh
        # Rows of one prompt side by side; a dict keeps the order in which prompts came.
        by_prefix: dict[int, list[_Row]] = {}
        for row in rows:
            by_prefix.setdefault(id(row.prefix), []).append(row)
        self._batch = [row for group in by_prefix.values() for row in group]
        if not self._batch:
            return
        prefixes = [row.prefix for row in self._batch if row.prefix is not None]
        if self._cache is None:
            self._cache = RowCache(prefixes[0])
        stays = {id(row) for row in kept}
        self._cache.rebuild(
            [order[id(row)] if id(row) in stays else -1 for row in self._batch], prefixes
        )

    def _take(self, room: int) -> list[_Row]:
        """Rows of the queue: what is left of the first prompts, up to `room`."""
        taken: list[_Row] = []
        tokens = 0
        while self._queue and len(taken) < room:
            group = self._queue[0]
            if group[0].prefix is None:
                tokens += len(group[0].request.prompt_ids)
                if taken and tokens > _PREFILL_TOKENS:
                    break
            for _ in range(min(room - len(taken), len(group))):
                taken.append(group.popleft())
            if not group:
                self._queue.popleft()
        return taken

    def _start(self, rows: Sequence[_Row]) -> None:
        """Compute the prompts that are not yet, and draw the first tokens (and more, of rows that
        the cache is of no use to)."""
        new: dict[tuple[int, ...], list[_Row]] = {}
        for row in rows:
            if row.prefix is None:
                new.setdefault(row.request.prompt_ids, []).append(row)
        if new:
            prefixes = self._prefill(list(new))
            for (ids, group), prefix in zip(new.items(), prefixes, strict=True):
                # Of the queue, only the first prompt's rows may have been taken in part.
                for row in (*group, *(self._queue[0] if self._queue else ())):
                    if row.request.prompt_ids == ids:
                        row.prefix = prefix
        self._draw(rows, _logits_of(rows))
        self._recompute(rows)

    def _recompute(self, rows: Sequence[_Row]) -> None:
        """The rows' whole sequences, as prompts of their own, and their next tokens."""
        while rows := [row for row in rows if row.end is None and self._in_new_era(row)]:
            for row in rows:
                (row.prefix,) = self._prefill([(*row.request.prompt_ids, *row.tokens)])
            self._draw(rows, _logits_of(rows))

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        self._figures.prefill_tokens += sum(map(len, prompts))
        return self._decoder.prefill(prompts)

    def _draw(self, rows: Sequence[_Row], logits: torch.Tensor) -> None:
        """logits [rows, V]: each row's next token."""
        by_law: dict[object, list[int]] = {}
        for place, row in enumerate(rows):
            by_law.setdefault(row.request.sampling, []).append(place)
        for places in by_law.values():
            some = [rows[place] for place in places]
            part = logits if len(some) == len(rows) else logits[places]
            self._append(
                some,
                draw(
                    part,
                    some[0].request.sampling,
                    [row.uniforms[len(row.tokens)] for row in some],
                    [self._seen(row) for row in some if row.request.sampling.penalises],
                ),
            )

    def _append(self, rows: Sequence[_Row], drawn: Drawn) -> None:
        for place, row in enumerate(rows):
            token = drawn.tokens[place]
            row.tokens.append(token)
            row.sampling.append(drawn.sampling_logprobs[place])
            row.policy.append(drawn.policy_logprobs[place])
            if row.seen is not None:
                row.seen.add(token)
            row.end = row.watch.after(token)
            if row.end is not None:
                row.prefix = row.seen = None  # with its last row a prompt's memory is free

    def _seen(self, row: _Row) -> Seen:
        if row.seen is None:
            vocabulary = self._model.vocabulary
            row.seen = Seen(row.request.prompt_ids, vocabulary, self._model.device)
        return row.seen


def _positions(model: Architecture) -> Positions:
    return Positions(model.rotary, model.dtype, model.device)


def _by_prompt(rows: Sequence[_Row]) -> deque[deque[_Row]]:
    """Rows of equal prompts together, prompts in the order in which they first come."""
    groups: dict[tuple[int, ...], deque[_Row]] = {}
    for row in rows:
        groups.setdefault(row.request.prompt_ids, deque()).append(row)
    return deque(groups.values())


def _logits_of(rows: Sequence[_Row]) -> torch.Tensor:
    """[rows, V]: after the last token of what each row's prefix holds."""
    return torch.stack([row.prefix.logits for row in rows if row.prefix is not None])
