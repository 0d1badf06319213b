"""The rollout engine on the training model's own weights.

A batch of rows decodes one token a step. Each prompt is computed once, for all its requests; a row
that ends makes room for the next request, and the batch shrinks when there is none. What a request
gets does not depend on the rows beside it, beyond the last bits of a product. Between calls the
engine holds nothing but the model: no weights, keys or values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .architecture import Architecture, read_architecture
from .batch import Batch, Row
from .decoder import Decoder
from .figures import PhaseClock, RolloutFigures
from .graphs import RecordingDecoder, recorder_for
from .plan import RolloutPlan
from .protocol import Completion, OnCompletion, Request, UnusableRequest
from .rope_tables import RopeTables
from .sampling import Uniforms
from .stopping import StopChecker
from .weights import decoder_weights

Untyped = Any  # Any: transformers is not typed


class NativeEngine:
    """`RolloutEngine` for a model of transformers, with PEFT's LoRA or without."""

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer`: for requests with stop texts. Raises UnsupportedModel."""
        self._architecture = read_architecture(model)
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
        self.figures = RolloutFigures()
        """Of the last call."""
        self.interrupted: Callable[[], bool] = lambda: False
        """Whether to raise Interrupted in place of the next token."""

    @property
    def batch_invariant(self) -> bool:
        """Whether rounding is so fine that a row's tokens do not depend on its batch's size."""
        return self._architecture.dtype == torch.float32

    @property
    def stable_length(self) -> int | None:
        """See positions.py: completions that end beyond it were drawn from laws that a forward of
        the whole sequence does not have."""
        return _rope_tables(self._architecture).stable_length

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """See `RolloutEngine`. Raises UnusableRequest before anything is computed,
        UnsupportedModel, NotFinite, Interrupted, and what `on_completion` raises; the weights are
        as they were, whatever is raised."""
        self.figures = figures = RolloutFigures()
        self._check(requests)
        with PhaseClock(figures.sync, self._architecture.device) as clock:
            # The model may have changed since the last call: another adapter, head or device.
            model = self._architecture = read_architecture(self._model)
            rope_tables = _rope_tables(model)
            rows = [
                Row(place, one, Uniforms(one.seed), StopChecker(one, self._tokenizer))
                for place, one in enumerate(requests)
            ]

            def on_end(row: Row) -> None:
                if on_completion is not None and row.completion is not None:
                    # Whose tensors are its own affair: ours cannot be trained on.
                    with clock.during(figures.callback), torch.inference_mode(False):
                        on_completion(row.place, row.completion)

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

    def _check(self, requests: Sequence[Request]) -> None:
        vocabulary = self._architecture.vocabulary
        for place, request in enumerate(requests):
            if not all(0 <= one < vocabulary for one in request.prompt_ids):
                raise UnusableRequest(
                    f"request {place}: prompt_ids must be 0 to {vocabulary - 1}, the model's rows; "
                    f"got {min(request.prompt_ids)} to {max(request.prompt_ids)}"
                )


def _rope_tables(model: Architecture) -> RopeTables:
    return RopeTables(model.rotary, model.dtype, model.device)
