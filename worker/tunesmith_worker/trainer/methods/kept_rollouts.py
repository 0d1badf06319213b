"""Storage of the current step's completions on disk, where they survive a killed attempt.

The next attempt reuses the stored completions only if it begins at the same step of the same run,
because other weights would generate other completions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tunesmith_worker.engine.rollout import Completion, FinishReason

Json = dict[str, Any]  # Any: JSON


class KeptRollouts:
    def __init__(self, path: Path, made_for: str) -> None:
        """`made_for`: SHA-256 of the run's spec and data files; completions of another spec or
        other data are not reused."""
        self._path, self._made_for = path, made_for
        self._file: IO[str] | None = None

    def begin(self, step: int, *, resumed: bool, count: int, partly: bool) -> dict[int, Completion]:
        """Start a step and return its stored completions; the keys are completion indices.

        `count`: number of completions in the step. `partly`: True to reuse an incomplete set of
        completions. Set `partly` only if completions do not depend on the batch size, because the
        missing completions are generated in a smaller batch."""
        head = {"step": step, "made_for": self._made_for, "count": count}
        stored = self._read(head) if resumed else {}
        if len(stored) < count and not partly:
            stored = {}
        self.close()
        self._path.parent.mkdir(exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8", buffering=1)  # flush every line
        self._file.write(json.dumps(head) + "\n")
        for index, completion in stored.items():
            self.add(index, completion)
        return stored

    def add(self, index: int, completion: Completion) -> None:
        assert self._file is not None, "call begin first"
        self._file.write(json.dumps(_as_json(index, completion)) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, head: Json) -> dict[int, Completion]:
        stored: dict[int, Completion] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
            if not lines or json.loads(lines[0]) != head:
                return {}
            for line in lines[1:]:
                entry = json.loads(line)
                stored[entry["place"]] = _completion(entry)
        except (OSError, ValueError, KeyError):  # no file, an incomplete line, or another version
            return stored
        return stored


def _as_json(index: int, completion: Completion) -> Json:
    return {
        "place": index,
        "token_ids": completion.token_ids,
        "sampling_logprobs": completion.sampling_logprobs,
        "policy_logprobs": completion.policy_logprobs,
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
    }


def _completion(entry: Json) -> Completion:
    return Completion(
        token_ids=entry["token_ids"],
        sampling_logprobs=entry["sampling_logprobs"],
        policy_logprobs=entry["policy_logprobs"],
        finish_reason=FinishReason(entry["finish_reason"]),
        stop_reason=entry["stop_reason"],
    )
