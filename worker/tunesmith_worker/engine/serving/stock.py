"""Serving engine that generates with transformers, one request at a time.

The engine serves the models and adapters that the native engine does not support. transformers runs
the model and its cache. A logits processor samples each token with the same code as the native
engine, so that requests have the same parameters and answers in both engines. The logits processor
also delivers each token to the caller.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import peft
import torch
import transformers

from tunesmith_worker.engine.rollout.sampling import Uniforms

from .base import BaseModel
from .grammar import Grammars
from .loop import deliver
from .protocol import AGAIN, UNLOADED, Figures, Output, QueueFull, ServingError, Stream, cannot_load
from .rows import Row, prompt_scores_of, sample_rows
from .text import TextStream

log = logging.getLogger(__name__)

Untyped = Any  # Any: transformers and peft are not typed

_LONGEST_PAUSE = 1.0
"""Maximum pause in seconds. The pause is a share of the time since the last token. Without a limit,
the first token after a time without requests would cause a very long pause."""


class StockServing:
    """`ServingEngine` with transformers' `generate` and plain PEFT adapters."""

    name = "transformers"

    def __init__(self, base: BaseModel, *, max_queue: int = 64) -> None:
        self.context = base.context
        self._base, self._max_queue = base, max_queue
        self._model = base.model
        # generate() would take missing settings, such as the end-of-sequence token, from here.
        base.model.generation_config = transformers.GenerationConfig(pad_token_id=0)
        self._adapters: dict[str, str] = {}
        """Name under which PEFT knows an adapter, keyed by the name that requests use."""
        self._loads = 0
        self._grammars = Grammars(base.tokenizer, base.vocabulary, base.eos_ids)
        self._figures = Figures()
        self._queue: deque[Row] = deque()
        self._running: Row | None = None
        self._lock = threading.Condition()
        self._model_lock = threading.Lock()
        """Lock that is held while a request is computed or an adapter is loaded or removed."""
        self._closing = False
        self._rest, self._resumed = 0.0, time.perf_counter()
        """`_rest`: length of the pause after a token, divided by the time that the token took.
        `_resumed`: clock time at which the last pause ended."""
        self._end = ServingError(f"{UNLOADED}: {AGAIN}")
        """Error for requests that are unfinished when the thread ends."""
        self._thread = threading.Thread(target=self._run, name=f"generate-{base.name}", daemon=True)
        self._thread.start()

    def submit(self, streams: Sequence[Stream]) -> None:
        rows = [self._row(stream) for stream in streams]
        with self._lock:
            if self._closing:
                raise self._end
            queued = len(self._queue)
            if queued + len(rows) > self._max_queue:
                raise QueueFull(
                    f"{queued} requests wait for this model, and the limit is {self._max_queue}: "
                    "send the request again later",
                    retry_after=5,
                )
            self._queue += rows
            self._figures.prompt_tokens += sum(len(row.tokens) for row in rows)
            self._lock.notify()

    def _row(self, stream: Stream) -> Row:
        request, schema = stream.request, stream.request.json_schema
        return Row(
            stream=stream,
            text=TextStream(self._base.tokenizer.backend_tokenizer, request.stop),
            uniforms=Uniforms(request.seed),
            matcher=None if schema is None else self._grammars.matcher(schema),
            prompt_scores=prompt_scores_of(request),
            tokens=list(request.prompt_ids),
        )

    def cancel(self, streams: Sequence[Stream]) -> None:
        ended = {id(stream) for stream in streams}
        with self._lock:
            rows = [*self._queue, *([self._running] if self._running else [])]
            for row in rows:
                if id(row.stream) in ended and not row.done:
                    row.done = True
                    self._figures.cancelled += 1
            self._queue = deque(row for row in self._queue if not row.done)

    def add_adapter(self, name: str, folder: str) -> None:
        with self._model_lock:
            self._loads += 1
            own = f"adapter{self._loads}"
            try:
                if isinstance(self._model, peft.PeftModel):
                    self._model.load_adapter(folder, own)
                else:
                    self._model = peft.PeftModel.from_pretrained(self._model, folder, own)
            except Exception as error:  # a broken adapter can raise anything
                raise cannot_load("the adapter", error) from error
            self._model.eval()
            self._adapters[name] = own

    def remove_adapter(self, name: str) -> None:
        with self._model_lock:
            self._model.delete_adapter(self._adapters.pop(name))

    def figures(self) -> Figures:
        with self._lock:
            running = self._running
            return replace(
                self._figures,
                running=int(running is not None),
                queued=len(self._queue),
                live_tokens=len(running.tokens) if running is not None else 0,
            )

    def rest(self, share: float) -> None:
        self._rest = share

    def limit_cache(self, cache_bytes: int) -> None:
        """Do nothing: transformers frees its cache after each request."""

    def close(self, reason: str = UNLOADED) -> None:
        with self._lock:
            self._closing, self._end = True, ServingError(f"{reason}: {AGAIN}")
            waiting, self._queue = list(self._queue), deque()
            self._lock.notify()
        deliver([Output(row.stream, "", (), error=self._end) for row in waiting])
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._queue or self._closing):
                    self._lock.wait()
                if self._closing:
                    return
                row = self._running = self._queue.popleft()
            try:
                with self._model_lock, torch.inference_mode():
                    self._generate(row)
                if not self.must_stop(row):
                    raise RuntimeError("transformers ended the generation early")
                if not row.done:
                    raise self._end
            except Exception as error:  # a failed request must not end the thread
                log.exception("a request failed")
                deliver([Output(row.stream, "", (), error=error)])
            with self._lock:
                self._running = None
                self._figures.finished += 1

    def _generate(self, row: Row) -> None:
        request, model = row.stream.request, self._model
        if request.adapter is not None:
            model.set_adapter(self._adapters[request.adapter])
        is_plain = request.adapter is None and isinstance(model, peft.PeftModel)
        ids = torch.tensor([request.prompt_ids], device=self._base.model.device)
        with model.disable_adapter() if is_plain else nullcontext():
            if row.prompt_scores is not None:
                logits = model(input_ids=ids, use_cache=False).logits[0]
                row.prompt_scores.add(lambda part: logits[part].float(), 0, len(logits))
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=request.max_tokens, do_sample=False, pad_token_id=0
                ),
                logits_processor=[_Sampler(self, row)],
                stopping_criteria=[_Stop(self, row)],
            )

    def must_stop(self, row: Row) -> bool:
        return row.done or self._closing

    def sample(self, row: Row, logits: torch.Tensor) -> int:
        """Sample and deliver the next token of the request `row` from its logits [1, V]."""
        if self.must_stop(row):
            return 0
        output = sample_rows([row], logits.float().clone())[0]
        self._figures.generated_tokens += len(output.token_ids)
        deliver([output])
        if self._rest:
            time.sleep(min(self._rest * (time.perf_counter() - self._resumed), _LONGEST_PAUSE))
        self._resumed = time.perf_counter()
        return output.token_ids[0] if output.token_ids else 0


class _Sampler(transformers.LogitsProcessor):  # type: ignore[misc]  # untyped in transformers
    """Samples a token, and masks all other tokens, so that `generate` chooses this token."""

    def __init__(self, engine: StockServing, row: Row) -> None:
        self._engine, self._row = engine, row

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self._engine.sample(self._row, scores)
        chosen = torch.full_like(scores, -torch.inf)
        chosen[:, token] = 0.0
        return chosen


class _Stop(transformers.StoppingCriteria):  # type: ignore[misc]  # untyped in transformers
    def __init__(self, engine: StockServing, row: Row) -> None:
        self._engine, self._row = engine, row

    def __call__(self, input_ids: torch.Tensor, scores: Untyped, **_: Untyped) -> torch.Tensor:
        stop = self._engine.must_stop(self._row)
        return torch.full((len(input_ids),), stop, device=input_ids.device)
