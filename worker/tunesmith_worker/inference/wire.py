"""Bodies of chat and text completions in OpenAI's format, whole and as stream chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tunesmith_worker.engine.serving.protocol import Output, TokenScores

from .token_text import Echoed, TokenText

Json = dict[str, Any]  # Any: JSON values


@dataclass
class Choice:
    """One completion: its text and tokens so far, and the reason why it ended."""

    text: str = ""
    tokens: int = 0
    scores: list[TokenScores] = field(default_factory=list)
    finish: str | None = None
    echoed: Echoed | None = None
    """Prompt whose log-probs are part of the answer."""


class Wire:
    """Writes the answer to one request."""

    def __init__(
        self, kind: Literal["chat", "text"], model: str, tokens: TokenText, *, null_usage: bool
    ) -> None:
        """`null_usage`: True to write `"usage": null` into all chunks except the last one, which
        has the usage."""
        self._kind, self._tokens, self._null_usage = kind, tokens, null_usage
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        name = "chat.completion" if kind == "chat" else "text_completion"
        self._head: Json = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": name,
            "created": int(time.time()),
            "model": model,
        }
        self._chunk_head = dict(self._head)
        if kind == "chat":
            self._chunk_head["object"] = "chat.completion.chunk"
        self._start = json.dumps(self._chunk_head)[:-1] + ', "choices": [{"index": '
        self._end = "]" + (', "usage": null}' if null_usage else "}")

    def whole(self, choices: Sequence[Choice], usage: Json) -> Json:
        return {
            **self._head,
            "choices": [self._choice(i, choice) for i, choice in enumerate(choices)],
            "usage": usage,
        }

    def _choice(self, index: int, choice: Choice) -> Json:
        logprobs = None
        if choice.scores or choice.echoed is not None:
            logprobs = self.logprobs(choice.scores, 0, choice.echoed)
        shared = {"index": index, "finish_reason": choice.finish, "logprobs": logprobs}
        if self._kind == "text":
            return {**shared, "text": choice.text}
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {**shared, "message": message}

    def first(self, index: int) -> str:
        """Return the chunk with the role; empty for text completions."""
        if self._kind == "text":
            return ""
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def progress(
        self, index: int, output: Output, offset: int, echoed: Echoed | None = None
    ) -> str:
        """Return the stream chunks for one output of the engine.

        `offset`: length of the text before this output. `echoed`: prompt at the start of this
        output.
        """
        logprobs = None
        if output.scores or echoed is not None:
            logprobs = self.logprobs(output.scores, offset, echoed)
        if self._kind == "text":
            if not output.text and output.finish is None and logprobs is None:
                return ""
            return self._chunk(index, output.text, logprobs, output.finish)
        chunks = ""
        if output.text or logprobs is not None:
            chunks = self._chunk(index, {"content": output.text}, logprobs, None)
        if output.finish is not None:
            chunks += self._chunk(index, {}, None, output.finish)
        return chunks

    def _chunk(self, index: int, delta: Json | str, logprobs: Json | None, end: str | None) -> str:
        name = "text" if self._kind == "text" else "delta"
        finish = "null" if end is None else f'"{end}"'
        scores = "null" if logprobs is None else json.dumps(logprobs)
        return (
            f'data: {self._start}{index}, "{name}": {json.dumps(delta)}, "logprobs": {scores}, '
            f'"finish_reason": {finish}}}{self._end}\n\n'
        )

    def usage_chunk(self, usage: Json) -> str:
        return f"data: {json.dumps({**self._chunk_head, 'choices': [], 'usage': usage})}\n\n"

    def logprobs(self, scores: Sequence[TokenScores], offset: int, echoed: Echoed | None) -> Json:
        """Return log-probs in the format for chat or for text.

        `offset`: length of the preceding text.
        """
        write = self._tokens.chat if self._kind == "chat" else self._tokens.text
        return write(scores, offset, echoed)


def usage(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
