"""The rows of a rollout: which decode together, who joins, and what each has drawn.

A row that ends makes room for the next request of the queue; the batch is put together anew when
that pays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from .architecture import Architecture
from .cache import Prefix, RowCache
from .decoder import Decoder
from .figures import PhaseClock, RolloutFigures
from .protocol import Completion, Interrupted, Request
from .rope_tables import RopeTables
from .sampling import PenaltyState, SampledTokens, Uniforms, sample
from .stopping import StopChecker

_PREFILL_TOKENS = 8192
"""Prompts that are computed together have no more tokens than this, unless one alone has."""
_ENDED_SHARE = 0.25
"""Rows that have ended are carried along until they are this share of the batch: to leave them out
costs a copy of what the others have cached."""


@dataclass(eq=False)
class Row:
    """One request on its way."""

    place: int
    request: Request
    uniforms: Uniforms
    stop_checker: StopChecker
    prefix: Prefix | None = None
    penalty_state: PenaltyState | None = None
    tokens: list[int] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)
    policy: list[float] = field(default_factory=list)
    completion: Completion | None = None
    """Once it has ended."""

    def add(self, token: int, sampling: float, policy: float) -> None:
        """The next token, with its log-probs."""
        self.tokens.append(token)
        self.sampling.append(sampling)
        self.policy.append(policy)
        if self.penalty_state is not None:
            self.penalty_state.add(token)
        end = self.stop_checker.check(token)
        if end is not None:
            self.completion = Completion(
                token_ids=self.tokens,
                sampling_logprobs=self.sampling,
                policy_logprobs=self.policy,
                finish_reason=end[0],
                stop_reason=end[1],
            )
            self.release()

    def release(self) -> None:
        """With its last row a prompt's memory is free."""
        self.prefix = self.penalty_state = None


class Batch:
    """One call's batch."""

    def __init__(
        self,
        model: Architecture,
        decoder: Decoder,
        rows: Sequence[Row],
        size: int,
        rope_tables: RopeTables,
        figures: RolloutFigures,
        clock: PhaseClock,
        on_end: Callable[[Row], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """`size`: most rows at a time; `on_end`: called with each row that has ended;
        `interrupted`: asked before each step."""
        self._model, self._decoder, self._rope_tables = model, decoder, rope_tables
        self._size, self._figures, self._clock = size, figures, clock
        self._rows, self._on_end, self._interrupted = rows, on_end, interrupted
        self._queue = _by_prompt(rows)
        self._batch: list[Row] = []
        """Rows that the cache holds, ended ones among them."""
        self._cache: RowCache | None = None

    def run(self) -> None:
        try:
            self._decode()
        finally:
            # An error's traceback would hold them for as long as somebody holds the error.
            self._cache = None
            for row in self._rows:
                row.release()

    def _decode(self) -> None:
        self._rebuild()
        while self._batch:
            if self._interrupted():
                raise Interrupted("asked to leave off")
            assert self._cache is not None
            newest = [row.tokens[-1] for row in self._batch]
            logits = self._decoder.step(
                torch.tensor(newest, device=self._model.device), self._cache
            )
            self._figures.decode_steps += 1
            self._figures.row_steps += len(self._batch)
            self._figures.cache_bytes = max(self._figures.cache_bytes, self._cache.bytes)
            live = [place for place, row in enumerate(self._batch) if row.completion is None]
            if len(live) < len(self._batch):
                logits = logits[torch.tensor(live, device=logits.device)]
            self._sample([self._batch[place] for place in live], logits)
            if self._should_rebuild():
                self._rebuild()

    def _should_rebuild(self) -> bool:
        """Whether the batch is to be put together anew."""
        dead = sum(row.completion is not None for row in self._batch)
        if dead == len(self._batch) or dead >= max(1.0, _ENDED_SHARE * len(self._batch)):
            return True
        if self._queue and len(self._batch) - dead <= self._size * (1 - _ENDED_SHARE / 2):
            return True
        if self._rope_tables.stable_length is None:
            return False
        return any(self._rope_changed(row) for row in self._batch if row.completion is None)

    def _rope_changed(self, row: Row) -> bool:
        """Whether the keys that the row has cached are those of other RoPE frequencies than its
        newest token's."""
        assert row.prefix is not None
        length = len(row.request.prompt_ids) + len(row.tokens)
        return self._rope_tables.rope_key(length) != row.prefix.rope_key

    def _rebuild(self) -> None:
        """Without rows that ended, with as many of the queue as there is room for, and with what
        has to be computed anew."""
        order = {id(row): place for place, row in enumerate(self._batch)}
        kept = [
            row for row in self._batch if row.completion is None and not self._rope_changed(row)
        ]
        again = [row for row in self._batch if row.completion is None and self._rope_changed(row)]
        self._recompute(again)
        fresh = [row for row in again if row.completion is None]
        while len(kept) + len(fresh) < self._size and self._queue:
            joining = self._take_from_queue(self._size - len(kept) - len(fresh))
            self._start_rows(joining)
            fresh += [row for row in joining if row.completion is None]
        rows = kept + fresh
        # Rows of one prompt side by side; a dict keeps the order in which prompts came.
        by_prefix: dict[int, list[Row]] = {}
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

    def _take_from_queue(self, room: int) -> list[Row]:
        """Rows of the queue: what is left of the first prompts, up to `room`."""
        taken: list[Row] = []
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

    def _start_rows(self, rows: Sequence[Row]) -> None:
        """Compute the prompts that are not yet, and draw the first tokens (and more, of rows that
        the cache is of no use to)."""
        new: dict[tuple[int, ...], list[Row]] = {}
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
        self._sample(rows, _prefix_logits(rows))
        self._recompute(rows)

    def _recompute(self, rows: Sequence[Row]) -> None:
        """The rows' whole sequences, as prompts of their own, and their next tokens."""
        while rows := [row for row in rows if row.completion is None and self._rope_changed(row)]:
            for row in rows:
                (row.prefix,) = self._prefill([(*row.request.prompt_ids, *row.tokens)])
            self._sample(rows, _prefix_logits(rows))

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        self._figures.prefill_tokens += sum(map(len, prompts))
        with self._clock.during(self._figures.prefill):
            return self._decoder.prefill(prompts)

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """logits [rows, V]: each row's next token."""
        by_params: dict[object, list[int]] = {}
        for place, row in enumerate(rows):
            by_params.setdefault(row.request.sampling, []).append(place)
        for places in by_params.values():
            some = [rows[place] for place in places]
            part = logits if len(some) == len(rows) else logits[places]
            self._append(
                some,
                sample(
                    part,
                    some[0].request.sampling,
                    [row.uniforms[len(row.tokens)] for row in some],
                    [
                        self._penalty_state(row)
                        for row in some
                        if row.request.sampling.has_penalties
                    ],
                ),
            )

    def _append(self, rows: Sequence[Row], drawn: SampledTokens) -> None:
        for place, row in enumerate(rows):
            row.add(
                drawn.tokens[place], drawn.sampling_logprobs[place], drawn.policy_logprobs[place]
            )
            if row.completion is not None:
                self._on_end(row)

    def _penalty_state(self, row: Row) -> PenaltyState:
        if row.penalty_state is None:
            vocabulary = self._model.vocabulary
            row.penalty_state = PenaltyState(row.request.prompt_ids, vocabulary, self._model.device)
        return row.penalty_state


def _by_prompt(rows: Sequence[Row]) -> deque[deque[Row]]:
    """Rows of equal prompts together, prompts in the order in which they first come."""
    groups: dict[tuple[int, ...], deque[Row]] = {}
    for row in rows:
        groups.setdefault(row.request.prompt_ids, deque()).append(row)
    return deque(groups.values())


def _prefix_logits(rows: Sequence[Row]) -> torch.Tensor:
    """[rows, V]: after the last token of what each row's prefix holds."""
    return torch.stack([row.prefix.logits for row in rows if row.prefix is not None])
