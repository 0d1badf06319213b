"""Answers to completion requests: from the parsed body to JSON or server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Literal

from starlette.responses import JSONResponse

from tunesmith_worker.engine.serving.protocol import Finish, Generation, Output, Stream

from . import wire
from .aside import aside
from .errors import ApiError, as_api_error
from .loaded import Loaded
from .parameters import (
    Body,
    Parameters,
    chat_parameters,
    check_length,
    check_logprobs,
    check_size,
    text_parameters,
)
from .pool import ModelPool
from .prompts import chat_ids, text_ids, text_size, texts_of
from .token_text import Echoed

Message = MutableMapping[str, Any]  # Any: ASGI messages
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Outputs = asyncio.Queue[Output | None]
"""Outputs of one request; None means that the client closed the connection."""


class Deliverer:
    """Passes outputs from engine threads to the event loop, once per step."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __call__(self, outputs: Sequence[Output]) -> None:
        self._loop.call_soon_threadsafe(_put, outputs)


def _put(outputs: Sequence[Output]) -> None:
    for output in outputs:
        queue: Outputs = output.stream.tag  # type: ignore[assignment]  # set by Answer
        queue.put_nowait(output)


class Answer:
    """One request in progress, as an ASGI response."""

    def __init__(
        self,
        kind: Literal["chat", "text"],
        body: Body,
        pool: ModelPool,
        deliver: Deliverer,
        request_id: str,
    ) -> None:
        """Raises ApiError for parameters that cannot be used."""
        self.request_id = request_id
        self._kind, self._body, self._pool, self._deliver = kind, body, pool, deliver
        self._params = chat_parameters(body) if kind == "chat" else text_parameters(body)
        self._outputs: Outputs = asyncio.Queue()
        self._streams: dict[int, int] = {}
        """Index of the choice that each stream generates; the keys are `id(stream)`."""
        self._all: list[Stream] = []
        self._choices: list[wire.Choice] = []
        self._echoed: dict[int, Echoed] = {}
        """Prompts to put before the answers (`echo`); the keys are the indices of the choices."""
        self._prompt_tokens = 0

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Send the answer. A closed connection cancels the request."""
        loaded, adapter = await self._pool.acquire(self._params.model)
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._submit(loaded, adapter)
            text = wire.Wire(
                self._kind, self._params.model, loaded.tokens, null_usage=self._params.include_usage
            )
            headers = {"x-tunesmith-engine": loaded.engine.name}
            if self._params.stream:
                await self._send_stream(send, text, headers)
            else:
                await self._send_whole(send, text, headers)
        finally:
            watch.cancel()
            open_streams = [
                s for s in self._all if self._choices[self._streams[id(s)]].finish is None
            ]
            if open_streams:
                loaded.engine.cancel(open_streams)
            loaded.end(adapter)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._outputs.put_nowait(None)

    async def _submit(self, loaded: Loaded, adapter: str | None) -> None:
        params, base = self._params, loaded.base
        size = text_size(self._body)
        if self._kind == "chat":
            messages = self._body.get("messages")
            prompts = [await aside(size, chat_ids, base.tokenizer, messages)]
        else:
            prompt = self._body.get("prompt")
            prompts = await aside(size, text_ids, base.tokenizer, prompt, base.vocabulary)
        echoed: list[Echoed | None] = [None] * len(prompts)
        if params.echo:
            texts = await aside(size, texts_of, base.tokenizer, self._body.get("prompt"), prompts)
            pairs = zip(prompts, texts, strict=True)
            echoed = [Echoed(ids[0], text) for ids, text in pairs]
        param = "messages" if self._kind == "chat" else "prompt"
        check_size(len(prompts), params)
        for prompt, start in zip(prompts, echoed, strict=True):
            limit = check_length(len(prompt), params, base.context, param)
            scored = limit + len(prompt) if params.echo else limit
            check_logprobs(len(prompts) * params.n, scored, params, chat=self._kind == "chat")
            self._prompt_tokens += len(prompt)
            for number in range(params.n):
                request = _generation(prompt, limit, number, params, adapter, base.eos_ids)
                stream = Stream(request, self._deliver, self._outputs)
                self._streams[id(stream)] = len(self._all)
                if start is not None:
                    self._echoed[len(self._all)] = start
                self._all.append(stream)
                self._choices.append(wire.Choice())
        if params.json_schema is None:
            loaded.engine.submit(self._all)
        else:  # compiling a JSON schema takes up to a second
            await asyncio.to_thread(loaded.engine.submit, self._all)

    async def _next(self) -> Output | None:
        """Record and return the next output; None if the client closed the connection."""
        output = await self._outputs.get()
        if output is None:
            return None
        if output.error is not None:
            self._choices[self._streams[id(output.stream)]].finish = "error"
            raise output.error
        index = self._streams[id(output.stream)]
        choice = self._choices[index]
        if self._params.echo:
            self._add_prompt(output, index)
        elif output.scores and output.token_ids[-1] in output.stream.request.stop_token_ids:
            output.scores = output.scores[:-1]
        choice.tokens += len(output.token_ids)
        choice.finish = output.finish
        return output

    def _add_prompt(self, output: Output, index: int) -> None:
        """Put the prompt before the first output of a choice.

        The engine generates at least one token. If the request asks for zero tokens, the generated
        token is dropped.
        """
        if self._params.max_tokens == 0:
            output.text, output.token_ids, output.scores = "", (), ()
            output.finish = Finish.LENGTH
        start = self._echoed.pop(index, None)
        if start is not None:
            output.text = start.text + output.text
            output.scores = output.prompt_scores + output.scores
            if self._params.top_logprobs is not None:
                self._choices[index].echoed = start

    def _usage(self) -> wire.Json:
        completion = sum(choice.tokens for choice in self._choices)
        cached = sum(stream.cached_tokens for stream in self._all[:: self._params.n])
        return wire.usage(self._prompt_tokens, completion, cached)

    async def _send_whole(self, send: Send, text: wire.Wire, headers: dict[str, str]) -> None:
        while any(choice.finish is None for choice in self._choices):
            output = await self._next()
            if output is None:
                return
            choice = self._choices[self._streams[id(output.stream)]]
            choice.text += output.text
            choice.scores += output.scores
        size = sum(len(choice.text) + 100 * len(choice.scores) for choice in self._choices)
        response = await aside(size, self._whole, text, headers)
        await response({"type": "http"}, _no_messages, send)

    def _whole(self, text: wire.Wire, headers: dict[str, str]) -> JSONResponse:
        return JSONResponse(text.whole(self._choices, self._usage()), headers=headers)

    async def _send_stream(self, send: Send, text: wire.Wire, headers: dict[str, str]) -> None:
        # The response starts with the first output, so that earlier errors still set the HTTP
        # status.
        output = await self._next()
        if output is None:
            return
        await send(_start(headers))
        await self._send_text(send, "".join(text.first(i) for i in range(len(self._all))))
        try:
            while output is not None:
                pieces = [self._piece(text, output)]
                done = all(choice.finish is not None for choice in self._choices)
                while not done and not self._outputs.empty():
                    output = await self._next()
                    if output is None:
                        return
                    pieces.append(self._piece(text, output))
                    done = all(choice.finish is not None for choice in self._choices)
                if done:
                    if self._params.include_usage:
                        pieces.append(text.usage_chunk(self._usage()))
                    await self._send_text(send, "".join(pieces) + "data: [DONE]\n\n", last=True)
                    return
                await self._send_text(send, "".join(pieces))
                output = await self._next()
        except Exception as error:
            body = json.dumps(as_api_error(error, self.request_id).body())
            await self._send_text(send, f"data: {body}\n\n", last=True)

    def _piece(self, text: wire.Wire, output: Output) -> str:
        index = self._streams[id(output.stream)]
        choice = self._choices[index]
        echoed, choice.echoed = choice.echoed, None
        piece = text.progress(index, output, len(choice.text), echoed)
        choice.text += output.text
        return piece

    async def _send_text(self, send: Send, text: str, *, last: bool = False) -> None:
        if text or last:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": not last})


def _generation(
    prompt: tuple[int, ...],
    limit: int,
    number: int,
    params: Parameters,
    adapter: str | None,
    eos_ids: frozenset[int],
) -> Generation:
    return Generation(
        prompt_ids=prompt,
        max_tokens=max(1, limit),
        # Choices of one request differ; the first equals that of a request with n=1.
        seed=(params.seed + number * 0x9E3779B97F4A7C15) % (1 << 64),
        sampling=params.sampling,
        stop_token_ids=eos_ids,
        stop=params.stop,
        adapter=adapter,
        cache_salt=params.cache_salt,
        top_logprobs=params.top_logprobs,
        prompt_logprobs=params.echo and params.top_logprobs is not None,
        json_schema=params.json_schema,
    )


def _start(headers: dict[str, str]) -> Message:
    every = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        **headers,
    }
    pairs = [(name.encode(), value.encode()) for name, value in every.items()]
    return {"type": "http.response.start", "status": 200, "headers": pairs}


async def _no_messages() -> Message:
    raise ApiError(500, "a JSON response does not receive ASGI messages")
