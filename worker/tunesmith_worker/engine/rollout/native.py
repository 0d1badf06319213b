"""Rollout engine that uses the training model's own weights.

In each step, every row of the batch decodes one token. Each prompt is computed once for all
requests that share it. Waiting requests replace completed rows. A completion does not depend on
other rows, apart from rounding in matrix products. Between calls, the engine keeps no copied
weights, keys or values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .architecture import Architecture, read_architecture
from .batch import Batch
from .decoder import Decoder
from .figures import PhaseClock, RolloutFigures
from .graphs import RecordingDecoder, recorder_for
from .plan import RolloutPlan
from .protocol import Completion, EngineName, OnCompletion, Request, UnusableRequest
from .rope_tables import RopeTables
from .rows import Row
from .sampling import Uniforms
from .stopping import StopChecker
from .weights import Layout, decoder_weights

Untyped = Any  # Any: transformers is not typed


class NativeEngine:
    """`ModelEngine` for a transformers model, with or without PEFT's LoRA."""

    name: EngineName = "native"
    samples_from_uniforms = True
    follows_dtype = True

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer` is required for requests with stop texts. Raises UnsupportedModel."""
        self._architecture = read_architecture(model)
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
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
        return self._architecture.dtype == torch.float32

    @property
    def stable_length(self) -> int | None:
        """Greatest sequence length before the RoPE frequencies change (rope_tables.py); None if
        they never change.

        Up to this length, a forward pass over the whole sequence uses the same RoPE frequencies as
        sampling."""
        return _rope_tables(self._architecture).stable_length

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Generate completions; see `RolloutEngine`.

        Raises UnusableRequest before any computation. Also raises UnsupportedModel, NotFinite,
        Interrupted, and exceptions of `on_completion`. The weights are always restored."""
        self.figures = figures = RolloutFigures()
        self._check(requests)
        with PhaseClock(figures.sync, self._architecture.device) as clock:
            # The model's adapter, head or device may have changed since the last call.
            model = self._architecture = read_architecture(self._model)
            rope_tables = _rope_tables(model)
            rows = [
                Row(i, request, Uniforms(request.seed), StopChecker(request, self._tokenizer))
                for i, request in enumerate(requests)
            ]

            def on_end(row: Row) -> None:
                if on_completion is not None and row.completion is not None:
                    # Autograd must be able to use tensors that the callback creates.
                    with clock.during(figures.callback), torch.inference_mode(False):
                        on_completion(row.index, row.completion)

            size = min(self._plan.max_rows, max(1, len(rows)))
            with (
                torch.inference_mode(),
                torch.autocast(model.device.type, enabled=False),
                decoder_weights(model, self._plan.weights, size) as weights,
                clock.during(figures.decode),
            ):
                if weights.fold is not None:
                    figures.fold_saved = weights.fold.saved
                decoder = Decoder(model, weights, rope_tables)
                recorder = recorder_for(model.device)
                if recorder is not None:
                    decoder = RecordingDecoder(model, weights, rope_tables, recorder, figures)
                batch = Batch(
                    model,
                    decoder,
                    rows,
                    size,
                    rope_tables,
                    figures,
                    clock,
                    on_end,
                    self.interrupted,
                )
                try:
                    batch.run()
                finally:
                    decoder.release()
        figures.generated_tokens = sum(len(row.tokens) for row in rows)
        return [row.completion for row in rows if row.completion is not None]

    def start(self) -> None:
        """Do nothing, because the engine needs nothing besides the model."""

    def close(self) -> None:
        """Do nothing, because the engine keeps no memory between calls."""

    def _check(self, requests: Sequence[Request]) -> None:
        vocabulary = self._architecture.vocabulary
        for i, request in enumerate(requests):
            if not all(0 <= token < vocabulary for token in request.prompt_ids):
                raise UnusableRequest(
                    f"request {i}: prompt_ids must be token ids of the model, 0 to "
                    f"{vocabulary - 1}; got {min(request.prompt_ids)} to {max(request.prompt_ids)}"
                )


def _rope_tables(model: Architecture) -> RopeTables:
    return RopeTables(model.rotary, model.dtype, model.device)
