"""Rollout engine that runs vLLM (https://docs.vllm.ai), an optional package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tunesmith_schema import LoraRecipe
from tunesmith_worker.rundir.errors import is_out_of_memory

from ..figures import PhaseClock, RolloutFigures
from ..plan import RolloutPlan
from ..protocol import (
    Completion,
    EngineLost,
    EngineName,
    OnCompletion,
    Request,
    RolloutError,
    UnusableRequest,
)
from .colocated import ColocatedVLLM
from .plan import server_address
from .server import FIRST_SECONDS, START_SECONDS, ServedVLLM
from .serves import why_not

Untyped = Any  # Any: transformers is not typed


class VLLMEngine:
    """`ModelEngine` for the model families in serves.py, with or without PEFT's LoRA.

    vLLM runs in this process, or as the server of TUNESMITH_ROLLOUT_URL. vLLM starts at the first
    call of `generate` or `start`. If vLLM runs in this process, it always uses the dtype that the
    model had when vLLM started."""

    name: EngineName = "vllm"
    samples_from_uniforms = True
    follows_dtype = False

    def __init__(self, model: Untyped, plan: RolloutPlan, tokenizer: Untyped = None) -> None:
        """`tokenizer` is required for requests with stop texts."""
        self._model, self._plan, self._tokenizer = model, plan, tokenizer
        self._vllm: ColocatedVLLM | ServedVLLM | None = None
        self.figures = RolloutFigures()
        """Times, token counts and memory of the last `generate` call."""
        self.interrupted: Callable[[], bool] = lambda: False
        """Function that is called before each step; generation raises Interrupted if it returns
        True."""

    @staticmethod
    def why_not(
        config: Untyped,
        device: torch.device,
        precision: str,
        lora: LoraRecipe | None,
        quantization: str,
    ) -> str | None:
        """Return the reason why vLLM cannot serve a model; None if it can."""
        return why_not(config, device, precision, lora, quantization)

    @property
    def batch_invariant(self) -> bool:
        """True for fp32 models: rounding is too small to make tokens depend on the batch size."""
        return bool(self._model.dtype == torch.float32)

    @property
    def stable_length(self) -> int | None:
        """None: the RoPE frequencies never change, because `why_not` refuses models in which they
        change with the sequence length."""
        return None

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Generate completions; see `RolloutEngine`.

        Raises UnusableRequest before any computation. Also raises UnsupportedModel, NotFinite,
        Interrupted, EngineLost, EngineUnavailable, and exceptions of `on_completion`."""
        self.figures = figures = RolloutFigures()
        self._check(requests)
        completions: dict[int, Completion] = {}
        with PhaseClock(figures.sync, self._model.device) as clock:
            vllm = self._started()
            with _engine_errors():
                vllm.load()

            def on_end(index: int, completion: Completion) -> None:
                completions[index] = completion
                if on_completion is not None:
                    with clock.during(figures.callback), _marked_as_callback_errors():
                        on_completion(index, completion)

            with clock.during(figures.decode):
                try:
                    with _engine_errors():
                        figures.decode_steps = vllm.generate(
                            requests, self._tokenizer, on_end, self.interrupted
                        )
                except _CallbackError as marked:
                    raise marked.error from None
        figures.prefill_tokens = sum(map(len, {request.prompt_ids for request in requests}))
        done = [completions[index] for index in range(len(requests))]
        figures.generated_tokens = sum(len(completion.token_ids) for completion in done)
        figures.row_steps = figures.generated_tokens
        return done

    def start(self) -> None:
        """Start vLLM, or connect to its server. Raises EngineLost, EngineUnavailable and
        UnsupportedModel."""
        self._started(FIRST_SECONDS)

    def close(self) -> None:
        """Stop vLLM and free its memory."""
        if self._vllm is not None:
            self._vllm.close()
            self._vllm = None

    def _started(self, seconds: float = START_SECONDS) -> ColocatedVLLM | ServedVLLM:
        """Return vLLM; start it or connect to its server if necessary. `seconds`: time limit for
        the server's first answer."""
        if self._vllm is None:
            address = server_address()
            with _engine_errors():
                if address is None:
                    self._vllm = ColocatedVLLM(self._model, self._plan)
                else:
                    self._vllm = ServedVLLM(
                        self._model,
                        *address,
                        row_tokens=self._plan.row_tokens,
                        seconds=seconds,
                        interrupted=self.interrupted,
                    )
        return self._vllm

    def _check(self, requests: Sequence[Request]) -> None:
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        for i, request in enumerate(requests):
            if not all(0 <= token < vocabulary for token in request.prompt_ids):
                raise UnusableRequest(
                    f"request {i}: prompt_ids must be token ids of the model, 0 to "
                    f"{vocabulary - 1}; got {min(request.prompt_ids)} to {max(request.prompt_ids)}"
                )


class _CallbackError(Exception):
    """Exception that `on_completion` raised, wrapped to distinguish it from errors of vLLM."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _marked_as_callback_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _CallbackError(error) from error


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Convert an unexpected error of vLLM into EngineLost."""
    try:
        yield
    except (_CallbackError, RolloutError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first_line = str(error).partition("\n")[0]
        raise EngineLost(f"vLLM failed: {type(error).__name__}: {first_line}") from error
