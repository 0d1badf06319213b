"""vLLM in the trainer's process.

vLLM keeps its own copy of the weights, because it joins and packs matrices for its kernels. Before
a rollout, the trained weights (with the adapter merged) replace the weights in vLLM's copy. Between
rollouts, vLLM sleeps: on a GPU, it frees the weights and its cache of attention keys and values. On
a CPU, vLLM has no sleep mode, but the memory pages of the cache are returned to the operating
system.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tunesmith_worker.engine.random_state import random_state, restore_random_state
from tunesmith_worker.rundir.process import set_environment

from ..plan import RolloutPlan
from ..protocol import Completion, Interrupted, Request
from .plan import cache_bytes
from .tied_head import refresh_tied_head
from .weights import PolicyWeights
from .wire import LOGPROBS_MODE, decode, sampling_arguments

Untyped = Any  # Any: vLLM and transformers are not typed

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other runner has no logits processors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer decides about threads
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
}
SPARE_TOKENS = 64
"""Number of tokens by which a prompt with its completion may exceed `RolloutPlan.row_tokens` in the
self-check."""
_MADV_DONTNEED = 4


class ColocatedVLLM:
    """vLLM with the architecture and dtype of a model in training."""

    def __init__(self, model: Untyped, plan: RolloutPlan) -> None:
        self._on_gpu = next(model.parameters()).device.type == "cuda"
        self._policy = PolicyWeights(model)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._complete = False
        """True if vLLM still has the weights that training does not change. `load` then loads only
        the weights that training changes."""
        with _undisturbed(), tempfile.TemporaryDirectory(prefix="tunesmith-vllm-") as folder:
            _write_config(model, folder)
            self._llm = _start(model, plan, folder, sleep=self._on_gpu)
        self._sleep()

    def load(self) -> None:
        """Wake vLLM up and load the current weights."""
        if self._on_gpu:
            self._llm.wake_up(tags=["weights"])
        weights = self._policy.trained() if self._complete else self._policy.everything()
        with torch.no_grad():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._llm.apply_model(refresh_tied_head)
        self._complete = not self._on_gpu
        self._llm.reset_prefix_cache()
        if self._on_gpu:
            self._llm.wake_up(tags=["kv_cache"])

    def generate(
        self,
        requests: Sequence[Request],
        tokenizer: Untyped,
        on_end: Callable[[int, Completion], None],
        interrupted: Callable[[], bool],
    ) -> int:
        """Generate completions, and call `on_end` for each completion. Return the number of
        steps."""
        from vllm import SamplingParams

        engine, steps = self._llm.llm_engine, 0
        running = set()
        try:
            for index, request in enumerate(requests):
                params = SamplingParams(**sampling_arguments(request))
                params.output_kind = type(params.output_kind).FINAL_ONLY
                engine.add_request(str(index), {"prompt_token_ids": [*request.prompt_ids]}, params)
                running.add(str(index))
            while engine.has_unfinished_requests():
                if interrupted():
                    raise Interrupted("generation was interrupted")
                steps += 1
                for output in engine.step():
                    running.discard(output.request_id)
                    index = int(output.request_id)
                    on_end(index, self._completion(requests[index], output, tokenizer))
        finally:
            if running:
                engine.abort_request(list(running))
            self._sleep()
        return steps

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()

    def _completion(self, request: Request, output: Untyped, tokenizer: Untyped) -> Completion:
        done = output.outputs[0]
        values = [{token: entry.logprob for token, entry in at.items()} for at in done.logprobs]
        return decode(request, list(done.token_ids), values, self._vocabulary, tokenizer)

    def _sleep(self) -> None:
        if self._on_gpu:
            self._llm.sleep(level=2)
        else:
            self._llm.reset_prefix_cache()
            self._llm.collective_rpc(_release_cache_pages)


def _start(model: Untyped, plan: RolloutPlan, folder: str, *, sleep: bool) -> Untyped:
    set_environment(ENVIRONMENT)
    import vllm

    from .sampler import RequestSampler

    logging.getLogger("vllm").setLevel(logging.ERROR)
    device = next(model.parameters()).device
    config = model.config.get_text_config()
    longest = int(config.max_position_embeddings)
    tokens = min(longest, plan.row_tokens + SPARE_TOKENS if plan.row_tokens else longest)
    return vllm.LLM(
        model=folder,
        runner="generate",
        skip_tokenizer_init=True,
        load_format="dummy",  # `load` loads all weights from memory
        dtype=str(model.dtype).removeprefix("torch."),
        max_model_len=tokens,
        max_num_seqs=plan.max_rows,
        kv_cache_memory_bytes=plan.max_rows * cache_bytes(model, tokens, device.type),
        gpu_memory_utilization=_utilization(device),
        enforce_eager=not sleep,
        enable_sleep_mode=sleep,
        enable_prefix_caching=True,
        async_scheduling=False,  # RequestSampler needs the previous token
        logits_processors=[RequestSampler],
        logprobs_mode=LOGPROBS_MODE,
        max_logprobs=2,
        disable_log_stats=True,
    )


def _write_config(model: Untyped, folder: str) -> None:
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    config = copy.deepcopy(causal.config)
    config.architectures = [type(causal).__name__]  # else vLLM guesses, and may load no head
    config.save_pretrained(folder)


def _utilization(device: torch.device) -> float:
    """Return the share of a GPU that vLLM requires to be free when it starts."""
    if device.type != "cuda":
        return 0.1
    free, total = torch.cuda.mem_get_info(device)
    return round(0.95 * free / total, 3)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo the changes that vLLM's start makes to the random state and the number of threads."""
    state, set_threads, threads = random_state(), torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        restore_random_state(state)


def _release_cache_pages(worker: Untyped) -> None:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    for cache in worker.model_runner.kv_caches:
        storage = cache.untyped_storage()
        start = -(-storage.data_ptr() // page) * page
        end = (storage.data_ptr() + storage.nbytes()) // page * page
        if end > start:
            madvise(start, end - start, _MADV_DONTNEED)
