"""One conversation with one model: the earlier messages, and answers as they arrive."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from threading import Event

from tunesmith._http.errors import TunesmithError
from tunesmith._sdk.chat import ChatParameters
from tunesmith._sdk.client import Client

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that could change the terminal. Line feeds and tabs are kept."""
_NOTES = {"length": "cut off at the model's maximum length"}


@dataclass
class Answer:
    """One answer, complete or not."""

    text: str = ""
    note: str = ""
    """Reason why the answer is incomplete."""
    error: TunesmithError | None = None
    done: bool = False


class Conversation:
    def __init__(
        self, client: Client, model: str, system: str | None, sampling: ChatParameters
    ) -> None:
        self.model = model
        self._client, self._sampling = client, sampling
        self._messages = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str, answer: Answer, stop: Event | None = None) -> Generator[str]:
        """Yield the parts of the answer and add them to `answer`. If `stop` gets set, end the
        answer early. An error is stored in `answer`."""
        messages = [*self._messages, {"role": "user", "content": question}]
        try:
            with self._client.chat.completions.create(
                model=self.model, messages=messages, stream=True, **self._sampling
            ) as stream:
                for chunk in stream:
                    if stop is not None and stop.is_set():
                        return
                    for choice in chunk.choices:
                        if choice.finish_reason:
                            answer.note = _NOTES.get(choice.finish_reason, "")
                        if choice.delta.content:
                            part = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", choice.delta.content)
                            answer.text += part
                            yield part
        except TunesmithError as error:
            answer.error = error
        finally:
            answer.done = True

    def remember(self, question: str, answer: Answer) -> None:
        """Add question and answer to the history if the answer has text and no error."""
        if answer.text and answer.error is None:
            self._messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer.text},
            ]
