"""The completions of the current step on disk, so that an attempt that dies while drawing them
does not draw those that were finished again.

They are the next attempt's only where that one stands at the same step of the same run with the
same weights: where it has just begun or resumed there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tunesmith_worker.engine.rollout import Completion, FinishReason

Json = dict[str, Any]  # Any: JSON


class KeptRollouts:
    def __init__(self, path: Path, made_for: str) -> None:
        """`made_for`: sha256 of what decides how the run goes."""
        self._path, self._made_for = path, made_for
        self._file: IO[str] | None = None

    def begin(self, step: int, *, resumed: bool, count: int, partly: bool) -> dict[int, Completion]:
        """The completions of this step that there are, by place; what is added from here on
        belongs to it. `count`: of its completions. `partly`: some of them are of use; else all or
        none, because the others would be drawn in a smaller batch, which rounds otherwise."""
        head = {"step": step, "made_for": self._made_for, "count": count}
        found = self._read(head) if resumed else {}
        if len(found) < count and not partly:
            found = {}
        self.close()
        self._path.parent.mkdir(exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8", buffering=1)  # a line at a time
        self._file.write(json.dumps(head) + "\n")
        for place, completion in found.items():
            self.add(place, completion)
        return found

    def add(self, place: int, completion: Completion) -> None:
        assert self._file is not None, "begin comes first"
        self._file.write(json.dumps(_as_json(place, completion)) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, head: Json) -> dict[int, Completion]:
        """Up to the first line that a kill has torn."""
        found: dict[int, Completion] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
            if not lines or json.loads(lines[0]) != head:
                return {}
            for line in lines[1:]:
                one = json.loads(line)
                found[one["place"]] = _completion(one)
        except (OSError, ValueError, KeyError):  # no file, half a line, another version's
            return found
        return found


def _as_json(place: int, completion: Completion) -> Json:
    return {
        "place": place,
        "token_ids": completion.token_ids,
        "sampling_logprobs": completion.sampling_logprobs,
        "policy_logprobs": completion.policy_logprobs,
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
    }


def _completion(one: Json) -> Completion:
    return Completion(
        token_ids=one["token_ids"],
        sampling_logprobs=one["sampling_logprobs"],
        policy_logprobs=one["policy_logprobs"],
        finish_reason=FinishReason(one["finish_reason"]),
        stop_reason=one["stop_reason"],
    )
