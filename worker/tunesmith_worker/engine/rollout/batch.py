"""Continuous batching: rows decode together, and waiting requests replace completed rows.

Rebuilding the batch copies the cache, so the batch is rebuilt only after enough rows have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from .architecture import Architecture
from .cache import Prefix, RowCache
from .decoder import Decoder
from .figures import PhaseClock, RolloutFigures
from .protocol import Interrupted
from .rope_tables import RopeTables
from .rows import Row, sample_rows

_PREFILL_TOKENS = 8192
"""Maximum number of prompt tokens per prefill. A longer prompt is prefilled alone."""
_RESERVED = 1024
"""Maximum number of completion tokens per row for which space in the cache is reserved, if steps
are CUDA graphs (graphs.py). With more space, each step takes longer, because a CUDA graph reads the
whole cache. With less space, the cache grows more often, and each time the graph must be recorded
again."""
_ENDED_SHARE = 0.25
"""Fraction of completed rows at which the batch is rebuilt."""


class Batch:
    """Batch of one `generate` call."""

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
        """`size`: maximum number of rows. `on_end` is called with each completed row. `interrupted`
        is called before each step; if it returns True, `run` raises Interrupted."""
        self._model, self._decoder, self._rope_tables = model, decoder, rope_tables
        self._size, self._figures, self._clock = size, figures, clock
        self._rows, self._on_end, self._interrupted = rows, on_end, interrupted
        self._queue = _by_prompt(rows)
        self._batch: list[Row] = []
        """Rows in the cache, including rows whose completion has ended."""
        self._cache: RowCache | None = None

    def run(self) -> None:
        try:
            self._decode()
        finally:
            # Without this, the traceback of an error would keep the cache in memory.
            self._cache = None
            for row in self._rows:
                row.release()

    def _decode(self) -> None:
        self._rebuild()
        while self._batch:
            if self._interrupted():
                raise Interrupted("generation was interrupted")
            assert self._cache is not None
            newest = [row.tokens[-1] for row in self._batch]
            logits = self._decoder.step(
                torch.tensor(newest, device=self._model.device), self._cache
            )
            self._figures.decode_steps += 1
            self._figures.row_steps += len(self._batch)
            self._figures.cache_bytes = max(self._figures.cache_bytes, self._cache.bytes)
            live = [i for i, row in enumerate(self._batch) if row.completion is None]
            if len(live) < len(self._batch):
                logits = logits[torch.tensor(live, device=logits.device)]
            self._sample([self._batch[i] for i in live], logits)
            if self._should_rebuild():
                self._rebuild()

    def _should_rebuild(self) -> bool:
        ended = sum(row.completion is not None for row in self._batch)
        if ended == len(self._batch) or ended >= max(1.0, _ENDED_SHARE * len(self._batch)):
            return True
        if self._queue and len(self._batch) - ended <= self._size * (1 - _ENDED_SHARE / 2):
            return True
        if self._rope_tables.stable_length is None:
            return False
        return any(self._rope_changed(row) for row in self._batch if row.completion is None)

    def _rope_changed(self, row: Row) -> bool:
        assert row.prefix is not None
        length = len(row.request.prompt_ids) + len(row.tokens)
        return self._rope_tables.rope_key(length) != row.prefix.rope_key

    def _rebuild(self) -> None:
        """Rebuild the batch: remove completed rows and add rows from the queue.

        Rows whose RoPE frequencies changed are recomputed."""
        old_index = {id(row): i for i, row in enumerate(self._batch)}
        kept = [
            row for row in self._batch if row.completion is None and not self._rope_changed(row)
        ]
        stale = [row for row in self._batch if row.completion is None and self._rope_changed(row)]
        self._recompute(stale)
        new = [row for row in stale if row.completion is None]
        while len(kept) + len(new) < self._size and self._queue:
            joining = self._take_from_queue(self._size - len(kept) - len(new))
            self._start_rows(joining)
            new += [row for row in joining if row.completion is None]
        rows = kept + new
        # Rows with the same prompt must be adjacent. The dict keeps the order of the prompts.
        by_prefix: dict[int, list[Row]] = {}
        for row in rows:
            by_prefix.setdefault(id(row.prefix), []).append(row)
        self._batch = [row for group in by_prefix.values() for row in group]
        if not self._batch:
            return
        prefixes = [row.prefix for row in self._batch if row.prefix is not None]
        if self._cache is None:
            self._cache = RowCache(prefixes[0])
        kept_ids = {id(row) for row in kept}
        places = [old_index[id(row)] if id(row) in kept_ids else -1 for row in self._batch]
        self._cache.rebuild(places, prefixes, self._reserved(places))

    def _reserved(self, places: Sequence[int]) -> int:
        """Return the number of completion tokens for which the cache must reserve space. `places`:
        index of each row in the old cache, or -1 for a new row."""
        if self._cache is None or not self._decoder.reserves_room:
            return 0
        cached = [0 if place < 0 else self._cache.lengths[place] for place in places]
        left = [row.request.max_tokens - len(row.tokens) for row in self._batch]
        return min(_RESERVED, max(map(sum, zip(cached, left, strict=True))))

    def _take_from_queue(self, room: int) -> list[Row]:
        joining: list[Row] = []
        tokens = 0
        while self._queue and len(joining) < room:
            group = self._queue[0]
            if group[0].prefix is None:
                tokens += len(group[0].request.prompt_ids)
                if joining and tokens > _PREFILL_TOKENS:
                    break
            for _ in range(min(room - len(joining), len(group))):
                joining.append(group.popleft())
            if not group:
                self._queue.popleft()
        return joining

    def _start_rows(self, rows: Sequence[Row]) -> None:
        """Prefill new prompts and sample the first token of each row.

        If the first token makes a row so long that its RoPE frequencies change, the row is
        prefilled again and its second token is sampled too.
        """
        new: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            if row.prefix is None:
                new.setdefault(row.request.prompt_ids, []).append(row)
        if new:
            prefixes = self._prefill(list(new))
            for (ids, group), prefix in zip(new.items(), prefixes, strict=True):
                # Other rows with the same prompt can only be in the queue's first group.
                for row in (*group, *(self._queue[0] if self._queue else ())):
                    if row.request.prompt_ids == ids:
                        row.prefix = prefix
        self._sample(rows, _prefix_logits(rows))
        self._recompute(rows)

    def _recompute(self, rows: Sequence[Row]) -> None:
        """Prefill the whole sequence of each row whose RoPE frequencies changed; sample its next
        token."""
        while rows := [row for row in rows if row.completion is None and self._rope_changed(row)]:
            for row in rows:
                (row.prefix,) = self._prefill([(*row.request.prompt_ids, *row.tokens)])
            self._sample(rows, _prefix_logits(rows))

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        self._figures.prefill_tokens += sum(map(len, prompts))
        with self._clock.during(self._figures.prefill):
            return self._decoder.prefill(prompts)

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        sample_rows(rows, logits, self._on_end)


def _by_prompt(rows: Sequence[Row]) -> deque[deque[Row]]:
    groups: dict[tuple[int, ...], deque[Row]] = {}
    for row in rows:
        groups.setdefault(row.request.prompt_ids, deque()).append(row)
    return deque(groups.values())


def _prefix_logits(rows: Sequence[Row]) -> torch.Tensor:
    return torch.stack([row.prefix.logits for row in rows if row.prefix is not None])
