"""Client of vLLM's own server, which runs in another process or on another host.

The operator starts the server with the base model (docs/how-to/vllm.md). Before a rollout, the
trainer sends the adapter's matrices, and the server merges the adapter with the same code as the
trainer. With full tuning, the trainer sends all trained weights. Requests use vLLM's endpoint for
token ids.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import httpx

from ..fold import checksum
from ..protocol import Completion, EngineLost, EngineUnavailable, Interrupted, Request
from .parcel import pack
from .refusals import not_vllm, problem_of
from .weights import PolicyWeights
from .wire import decode, sampling_arguments

Untyped = Any  # Any: transformers is not typed

START_SECONDS = 300.0
"""Seconds to wait until a lost server has started again."""
FIRST_SECONDS = 30.0
"""Seconds in which a server must answer at the start of a run."""
_POLL_SECONDS = 0.1
_PART_BYTES = 32 << 20
_CHECKED = 3
"""Number of base-model weights whose checksums are compared with the checksums on the server."""


class ServedVLLM:
    """Client of the server at `url`, for a model in training."""

    def __init__(
        self,
        model: Untyped,
        url: str,
        token: str,
        *,
        row_tokens: int = 0,
        seconds: float = START_SECONDS,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`row_tokens`: number of tokens of the longest prompt with its completion. `seconds`: time
        in which the server must answer. `interrupted`: see ModelEngine.

        Raises EngineLost if there is no server, and EngineUnavailable if the server has another
        base model, API key or options. Raises Interrupted if `interrupted` returns True."""
        self._policy = PolicyWeights(model)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._url = url.rstrip("/")
        self._weights_id = ""
        """Id of the weights of the last load."""
        self._complete = False
        """False until the first `load` has succeeded. In the first `load`, the server also reloads
        the weights that training does not change, because an earlier job may have replaced them."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._settings: dict[str, Untyped] = {
            "base_url": self._url,
            "headers": headers,
            "timeout": httpx.Timeout(600.0, connect=10.0),
            "trust_env": False,  # no proxy
        }
        self._client = httpx.Client(**self._settings)
        try:
            self._wait_for_start(seconds, interrupted)
            self._check_lengths(row_tokens)
            self._check_options()
            self._check_base_model(model)
        except BaseException:
            self._client.close()
            raise

    def load(self) -> None:
        """Send the current weights to the server, which loads them."""
        data = pack(self._policy.items(everything=not self._complete))
        self._call("tunesmith_begin")
        for start in range(0, len(data), _PART_BYTES):
            self._call(
                "tunesmith_add", base64.b64encode(data[start : start + _PART_BYTES]).decode()
            )
        self._weights_id = secrets.token_hex(8)
        self._call("tunesmith_load", self._weights_id)
        self._request("POST", "/reset_prefix_cache")
        self._complete = True

    def generate(
        self,
        requests: Sequence[Request],
        tokenizer: Untyped,
        on_end: Callable[[int, Completion], None],
        interrupted: Callable[[], bool],
    ) -> int:
        """Generate completions, and call `on_end` for each completion. Return 0 instead of a number
        of steps, because vLLM's steps are not counted."""

        async def run() -> None:
            try:
                await self._generate(requests, tokenizer, on_end, interrupted)
            finally:
                await asyncio.sleep(0)  # asyncio ends closed connections in its next round

        asyncio.run(run())
        return 0

    def close(self) -> None:
        self._client.close()

    async def _generate(
        self,
        requests: Sequence[Request],
        tokenizer: Untyped,
        on_end: Callable[[int, Completion], None],
        interrupted: Callable[[], bool],
    ) -> None:
        limits = httpx.Limits(max_connections=len(requests) + 1)
        async with httpx.AsyncClient(**self._settings, limits=limits) as client:
            running = {
                asyncio.create_task(self._ask(client, request)): index
                for index, request in enumerate(requests)
            }
            try:
                while running:
                    if interrupted():
                        raise Interrupted("generation was interrupted")
                    done, _ = await asyncio.wait(
                        running, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        index = running.pop(task)
                        tokens, values = task.result()
                        request = requests[index]
                        on_end(index, decode(request, tokens, values, self._vocabulary, tokenizer))
            finally:
                for task in running:  # vLLM aborts a request whose connection ends
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _ask(
        self, client: httpx.AsyncClient, request: Request
    ) -> tuple[list[int], list[dict[int, float]]]:
        body = {
            "token_ids": list(request.prompt_ids),
            "sampling_params": sampling_arguments(request, self._weights_id),
        }
        try:
            reply = await client.post("/inference/v1/generate", json=body)
        except httpx.TransportError as error:
            raise self._lost(error) from error
        if not reply.is_success:
            raise problem_of(reply, self._url)
        [choice] = reply.json()["choices"]
        if choice.get("finish_reason") == "abort":
            raise EngineLost(
                f"the vLLM server at {self._url} aborted a completion; the server may be stopping"
            )
        values = [
            {entry["token_id"]: entry["logprob"] for entry in (*at["top_logprobs"], at)}
            for at in choice["logprobs"]["content"]
        ]
        return choice["token_ids"], values

    def _wait_for_start(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while True:
            if interrupted():
                raise Interrupted("generation was interrupted")
            try:
                reply = self._client.get("/health", timeout=5.0)
                if reply.is_success:
                    return
                problem = problem_of(reply, self._url)
            except httpx.TransportError as error:
                problem = self._lost(error)
            if isinstance(problem, EngineUnavailable) or time.monotonic() > deadline:
                raise problem
            time.sleep(1.0)

    def _check_lengths(self, row_tokens: int) -> None:
        """Check that the server accepts the longest prompt with its completion, which has
        `row_tokens` tokens. This check also finds a wrong API key."""
        reply = self._request("GET", "/v1/models")
        limit = self._first_in(reply, "data").get("max_model_len")
        if type(limit) not in (int, type(None)):
            raise not_vllm(reply, self._url)
        if limit is not None and limit < row_tokens:
            raise EngineUnavailable(
                f"the vLLM server at {self._url} processes at most {limit} tokens per completion "
                f"with its prompt, but the job needs {row_tokens}",
                f"Start the server with --max-model-len {row_tokens}, or lower "
                "recipe.grpo.max_completion_length.",
            )

    def _check_options(self) -> None:
        missing = self._call("tunesmith_missing_options")
        if missing:
            raise EngineUnavailable(
                f"the vLLM server at {self._url} was started without {', '.join(missing)}",
                "Start the server with all options in docs/how-to/vllm.md.",
            )
        # Without a prompt, the route answers 400; without its option, 404.
        self._request("POST", "/inference/v1/generate", {}, allowed=(400, 422))

    def _check_base_model(self, model: Untyped) -> None:
        ours = {name: weight for name, weight in islice(self._policy.untrained(), _CHECKED)}
        if not ours:
            return
        theirs = self._call("tunesmith_checksums", *ours)
        different = [name for name, weight in ours.items() if theirs.get(name) != checksum(weight)]
        if not different:
            return
        served, dtype = self._call("tunesmith_base_model"), str(model.dtype).removeprefix("torch.")
        if served["dtype"] != dtype:
            raise EngineUnavailable(
                f"the vLLM server at {self._url} computes in {served['dtype']}, but the job in "
                f"{dtype}",
                f"Start the server with --dtype {dtype}.",
            )
        name = PurePosixPath(served["folder"]).name  # the folder is a path of the server's host
        raise EngineUnavailable(
            f"the vLLM server at {self._url} has another base model ({name}): its "
            f"{different[0]} differs from the trainer's",
            "Start the server with the job's base model, or set TUNESMITH_ROLLOUT_URL to a server "
            "that has it.",
        )

    def _call(self, method: str, *arguments: str) -> dict[str, Untyped]:
        reply = self._request("POST", "/collective_rpc", {"method": method, "args": [*arguments]})
        return self._first_in(reply, "results")

    def _request(
        self, method: str, path: str, body: Untyped = None, allowed: Collection[int] = ()
    ) -> httpx.Response:
        """Return the server's response. Raises an error for an error status, unless `allowed`
        contains the status."""
        try:
            reply = self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._lost(error) from error
        if not reply.is_success and reply.status_code not in allowed:
            raise problem_of(reply, self._url)
        return reply

    def _first_in(self, reply: httpx.Response, name: str) -> dict[str, Untyped]:
        """Return the first object of the JSON list `name` in the reply. Raises EngineUnavailable if
        there is none."""
        try:
            first = reply.json()[name][0]
        except (ValueError, LookupError, TypeError) as error:
            raise not_vllm(reply, self._url) from error
        if not isinstance(first, dict):
            raise not_vllm(reply, self._url)
        return first

    def _lost(self, error: Exception) -> EngineLost:
        return EngineLost(f"the vLLM server at {self._url} does not answer ({error})")
