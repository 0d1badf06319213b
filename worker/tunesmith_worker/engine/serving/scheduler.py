"""Continuous batching: in each step, requests can join and leave the batch.

A step generates one token for every request whose prompt has been computed. The step also computes
prompt tokens, but only so many that the step takes at most about twice as long as without them. So
a long prompt delays other requests only a little. If older requests need the memory of a newer
request, the newer request returns to the queue and is computed again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tunesmith_worker.engine.rollout.rope_tables import RopeTables

from .cache import PromptBuffer, SlotCache, round_up
from .decoder import DecodeRow, Part, ServingDecoder
from .pace import Pace
from .prefixes import MIN_TOKENS, PrefixStore, common_length_of
from .protocol import DoesNotFit, Figures, Output, Stream
from .rows import Row, sample_rows

_ROOM = 256
"""When the memory budget is reduced, every running request keeps space for this number of further
tokens."""
KEPT_SHARE = 0.5
"""Share of the memory budget for the attention keys and values that are kept from finished
requests."""


class Scheduler:
    """Scheduler of all requests for one base model. Not thread-safe."""

    def __init__(
        self, decoder: ServingDecoder, tables: RopeTables, max_rows: int, cache_bytes: int
    ) -> None:
        """`cache_bytes`: maximum size in bytes of the attention keys and values of all requests
        together."""
        self._decoder, self._tables = decoder, tables
        self._max_rows, self._budget = max_rows, cache_bytes
        self._shape = decoder.cache_shape
        self._cache = SlotCache(self._shape)
        self._kept = PrefixStore(int(cache_bytes * KEPT_SHARE))
        self._waiting: deque[Row] = deque()
        self._prompts: list[Row] = []
        """Requests whose prompt is being computed, oldest first."""
        self._decoding: list[Row] = []
        """Requests that generate tokens, in the order of their slots."""
        self._pace = Pace()
        # CPU time does not depend on other processes, such as a training job.
        on_cpu = self._shape.device.type == "cpu"
        self._clock = time.thread_time if on_cpu else time.perf_counter
        self._totals, self._figures = Figures(), Figures()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._prompts or self._decoding)

    @property
    def queued(self) -> int:
        """Number of waiting requests. Any thread may read it."""
        return len(self._waiting)

    def limit(self, cache_bytes: int) -> None:
        """Change the memory budget, but keep at least the bytes that the running requests need."""
        waiting = max((len(row.tokens) for row in self._waiting), default=0)
        tokens = _ROOM * (len(self._decoding) + 1) + 2 * round_up(waiting + 1)
        self._budget = max(cache_bytes, self._live_bytes() + tokens * self._shape.token_bytes)
        self._kept.max_bytes = int(cache_bytes * KEPT_SHARE)
        while self._kept.bytes > self._kept.max_bytes and self._kept.drop_oldest():
            pass
        self._shrink_kept()
        self._publish()

    def figures(self) -> Figures:
        """Return the latest numbers of requests and cached tokens. Any thread may call this
        method."""
        return self._figures

    def _publish(self) -> None:
        """Compute the numbers that `figures` returns.

        Only the engine's thread may call this method, because the method reads requests that a step
        changes.
        """
        rows = [*self._prompts, *self._decoding]
        self._figures = replace(
            self._totals,
            running=len(rows),
            queued=len(self._waiting),
            live_tokens=sum(row.cached for row in rows),
            kept_tokens=self._kept.tokens,
            cache_bytes=self._live_bytes() + self._kept.bytes,
        )

    def add(self, row: Row) -> None:
        row.tokens = list(row.stream.request.prompt_ids)
        self._totals.prompt_tokens += len(row.tokens)
        self._waiting.append(row)
        self._publish()

    def cancel(self, streams: Iterable[Stream]) -> None:
        """Remove requests and free their keys and values immediately."""
        ended = {id(stream) for stream in streams}
        rows = [*self._waiting, *self._prompts, *self._decoding]
        for row in rows:
            if id(row.stream) in ended:
                row.done = True
                self._totals.cancelled += 1
        self._waiting = deque(row for row in self._waiting if not row.done)
        self._remove_done(keep=False)
        self._publish()

    def forget(self, adapter: str) -> None:
        """Drop the kept sequences of an adapter."""
        self._kept.forget(adapter)
        self._publish()

    def fail_all(self, error: Exception) -> list[Output]:
        """End every request with an error and free all memory."""
        rows = [*self._waiting, *self._prompts, *self._decoding]
        self._waiting.clear()
        self._prompts, self._decoding = [], []
        self._cache = SlotCache(self._shape)
        while self._kept.drop_oldest():
            pass
        self._publish()
        return [Output(row.stream, "", (), error=error) for row in rows]

    def step(self) -> list[Output]:
        """Compute the next step; return the outputs of all requests that got a token or ended."""
        outputs = self._step()
        self._publish()
        return outputs

    def _step(self) -> list[Output]:
        outputs = self._make_room()
        outputs += self._admit()
        parts = self._next_parts()
        if not parts and not self._decoding:
            return outputs
        started = self._clock()
        logits = self._decoder.run(
            [
                DecodeRow(row.tokens[-1], row.rope_key, row.stream.request.adapter)
                for row in self._decoding
            ],
            self._cache,
            [part for _, part in parts],
        )
        for row in self._decoding:
            row.cached += 1
        for row, part in parts:
            row.cached += len(part.ids)
        ready = [row for row, part in parts if part.needs_logits]
        rows = [*self._decoding, *ready]
        if rows:
            outputs += sample_rows(rows, logits)
            self._totals.generated_tokens += len(rows)
        prompt_tokens = sum(len(part.ids) for _, part in parts)
        self._pace.record(len(self._decoding), prompt_tokens, self._clock() - started)
        self._move(ready)
        return outputs

    def _move(self, ready: Sequence[Row]) -> None:
        self._totals.finished += sum(row.done for row in [*self._decoding, *ready])
        for row in ready:
            if not row.done and row.buffer is not None:
                self._cache.append(row.buffer, row.cached)
                self._prompts.remove(row)
                self._decoding.append(row)
                row.buffer = None
        self._remove_done(keep=True)
        for slot in range(len(self._decoding) - 1, -1, -1):
            row = self._decoding[slot]
            if self._tables.rope_key(len(row.tokens)) != row.rope_key:
                self._leave(slot)
                self._waiting.appendleft(row)

    def _remove_done(self, *, keep: bool) -> None:
        """Remove completed requests. With `keep`, keep their attention keys and values for later
        requests."""
        for slot in range(len(self._decoding) - 1, -1, -1):
            row = self._decoding[slot]
            if row.done:
                if keep and self._can_keep(row):
                    self._keep(row, slot)
                if row.broken:
                    self._cache.clear(slot)
                self._leave(slot)
        for row in [row for row in self._prompts if row.done]:
            if keep and self._can_keep(row):
                self._keep(row)
            row.buffer = None
            self._prompts.remove(row)

    def _leave(self, slot: int) -> None:
        self._cache.remove(slot)
        row = self._decoding[slot]
        self._decoding[slot] = self._decoding[-1]
        self._decoding.pop()
        row.cached = 0

    def _can_keep(self, row: Row) -> bool:
        size = row.cached * self._shape.token_bytes
        free = self._budget - self._live_bytes()
        return (
            not row.broken and row.cached >= MIN_TOKENS and self._kept.fits(size) and size <= free
        )

    def _keep(self, row: Row, slot: int | None = None) -> None:
        size = row.cached * self._shape.token_bytes
        space, tokens = row.stream.prefix_space, row.tokens[: row.cached]
        self._kept.make_room(space, row.rope_key, tokens, size)
        self._shrink_kept(further=size)
        if slot is not None:
            kv = self._cache.copy_of(slot, row.cached)
        else:
            assert row.buffer is not None, "a row without a slot has a buffer"
            kv = row.buffer.kv[..., : row.cached, :].clone()
        self._kept.add(space, row.rope_key, tokens, kv)

    def _buffer_bytes(self) -> int:
        return sum(row.buffer.bytes for row in self._prompts if row.buffer is not None)

    def _live_bytes(self) -> int:
        return self._cache.bytes + self._buffer_bytes()

    def _shrink_kept(self, rows: int = 0, tokens: int = 0, *, further: int = 0) -> None:
        others = self._buffer_bytes() + further
        grown = self._cache.bytes_for(rows, tokens)
        if max(self._cache.bytes, grown) + others + self._kept.bytes > self._budget:
            self._cache.trim()
        while max(self._cache.bytes, grown) + others + self._kept.bytes > self._budget:
            if not self._kept.drop_oldest():
                return

    def _needed(self, rows: int, tokens: int) -> int:
        """Return the size in bytes of all prompt buffers, plus the slots of `rows` requests of up
        to `tokens` tokens each."""
        return self._cache.bytes_for(rows, tokens) + self._buffer_bytes()

    def _longest(self) -> int:
        return max((len(row.tokens) for row in [*self._decoding, *self._prompts]), default=0)

    def _make_room(self) -> list[Output]:
        """Move the newest requests back to the queue until the next tokens of all other requests
        fit into memory."""
        while True:
            rows, tokens = len(self._decoding) + len(self._prompts), self._longest() + 1
            if not self._decoding or self._needed(rows, tokens) <= self._budget:
                self._shrink_kept(rows, tokens)
                return []
            if self._prompts:
                row = self._prompts.pop()
                row.buffer, row.cached = None, 0
                self._waiting.appendleft(row)
            elif len(self._decoding) > 1:
                row = self._decoding[-1]
                self._leave(len(self._decoding) - 1)
                self._waiting.appendleft(row)
            else:
                row = self._decoding[0]
                self._leave(0)
                return [Output(row.stream, "", (), error=self._too_large(row))]

    def _too_large(self, row: Row) -> DoesNotFit:
        return DoesNotFit(
            f"{len(row.tokens)} tokens need {self._needed(1, len(row.tokens) + 1):,} bytes for "
            f"their keys and values, but the memory budget is {self._budget:,} bytes: use a "
            "shorter prompt or fewer completion tokens"
        )

    def _admit(self) -> list[Output]:
        while self._waiting and len(self._decoding) + len(self._prompts) < self._max_rows:
            row = self._waiting[0]
            rows = len(self._decoding) + len(self._prompts) + 1
            tokens = len(row.tokens) + 1
            longest = max(tokens, self._longest() + 1)
            buffer = round_up(tokens) * self._shape.token_bytes
            if self._needed(rows, longest) + buffer > self._budget:
                if rows > 1:
                    return []
                self._waiting.popleft()
                return [Output(row.stream, "", (), error=self._too_large(row))]
            self._waiting.popleft()
            self._shrink_kept(rows, longest, further=buffer)
            self._start(row, tokens)
        return []

    def _start(self, row: Row, tokens: int) -> None:
        row.rope_key = self._tables.rope_key(len(row.tokens))
        row.buffer, row.cached = PromptBuffer(self._shape, tokens), 0
        if row.prompt_scores is not None:
            row.prompt_scores.found.clear()
        self._prompts.append(row)

    def _reuse(self, row: Row) -> None:
        """Copy attention keys and values to `row` from the kept sequence or running request that
        has the longest common prefix with `row`, if the prefix has at least MIN_TOKENS tokens."""
        assert row.buffer is not None
        space = row.stream.prefix_space
        found = self._kept.find(space, row.rope_key, row.tokens)
        length = found[1] if found is not None else MIN_TOKENS - 1
        source = found[0].kv if found is not None else None
        for slot, other in enumerate(self._decoding):
            if other.stream.prefix_space == space and other.rope_key == row.rope_key:
                common = common_length_of(other.tokens[: other.cached], row.tokens[:-1])
                if common > length:
                    source, length = self._cache.copy_of(slot, common), common
        if source is not None:
            row.buffer.kv[..., :length, :] = source[..., :length, :]
            row.cached = length
            row.stream.cached_tokens = min(length, len(row.stream.request.prompt_ids))
            self._totals.reused_tokens += length

    def _next_parts(self) -> list[tuple[Row, Part]]:
        left = self._pace.prompt_tokens(len(self._decoding))
        parts: list[tuple[Row, Part]] = []
        for row in self._prompts:
            if left <= 0:
                break
            # Kept keys and values give no log-probs of the prompt.
            if row.cached == 0 and row.prompt_scores is None:
                if any(_same_start(row, other) for other, _ in parts):
                    continue  # wait for the common prefix
                self._reuse(row)
            assert row.buffer is not None
            count = min(left, row.pending)
            left -= count
            part = Part(
                ids=row.tokens[row.cached : row.cached + count],
                start=row.cached,
                buffer=row.buffer,
                rope_key=row.rope_key,
                adapter=row.stream.request.adapter,
                needs_logits=count == row.pending,
                scores=row.prompt_scores,
            )
            parts.append((row, part))
        return parts


def _same_start(row: Row, other: Row) -> bool:
    if row.stream.prefix_space != other.stream.prefix_space:
        return False
    return common_length_of(row.tokens, other.tokens) >= max(MIN_TOKENS, len(row.tokens) // 2)
