"""`client.evaluations`: evaluations on demand, and stored results of lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import TunesmithError, WaitTimeoutError, invalid_argument
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import (
    EvaluationCreate,
    EvaluationDeleted,
    EvaluationStatus,
    Grader,
    RequestedEvaluation,
    TaskResults,
)

from .files import DataFile, Files, Order

_CHECKED_LATER = "file-"
"""Placeholder for the file id while the other arguments are checked. If `file` is a local path, the
file is uploaded only after this check."""
_FIRST_POLL, _SLOWEST_POLL = 0.25, 2.0


class EvaluationNotSucceededError(TunesmithError):
    """An evaluation failed or was cancelled; `evaluation` is its final state."""

    def __init__(self, evaluation: RequestedEvaluation) -> None:
        error = evaluation.error
        reason = f": {error.message}" if error is not None else ""
        super().__init__(
            f"evaluation {evaluation.id} {_END[evaluation.status]}{reason}",
            hint=None if error is None else error.hint,
        )
        self.evaluation = evaluation


_END = {EvaluationStatus.FAILED: "failed", EvaluationStatus.CANCELLED: "was cancelled"}


class Evaluations:
    """Evaluations of models: `client.evaluations`."""

    def __init__(self, http: Http, files: Files) -> None:
        self._http, self._files = http, files

    def create(
        self,
        *,
        model: str,
        file: DataFile | None = None,
        against: str | None = None,
        grader: Grader | Mapping[str, Any] | None = None,  # Any: JSON
        task_results: TaskResults | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> RequestedEvaluation:
        """Start the evaluation of a model on a file, or store results of lm-eval.

        `model`: base model, tuned model or checkpoint. `file`: file id, or a local path, which is
        uploaded. `against`: model to compare with; the default is the base model of a tuned model.
        `grader`: grader that scores the answers (greedy decoding). `task_results`: results of
        lm-eval, instead of `file`.
        """
        arguments = {
            "kind": "data" if task_results is None else "tasks",
            "model": model,
            "against": against,
            "file": None if file is None else _CHECKED_LATER,
            "grader": grader,
            "task_results": task_results,
        }
        try:
            body = EvaluationCreate.model_validate(
                {name: value for name, value in arguments.items() if value is not None}
            )
        except ValidationError as error:
            raise invalid_argument(error) from error
        if file is not None:
            body.file = self._files.id_of("file", file)
        return self._http.post(
            RequestedEvaluation,
            "evaluations",
            json=body.model_dump(mode="json", exclude_unset=True),
            idempotency_key=idempotency_key,
        )

    def retrieve(self, evaluation_id: str) -> RequestedEvaluation:
        return self._http.get(RequestedEvaluation, path_of("evaluations", evaluation_id))

    def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: Order | None = None,
        model: str | None = None,
    ) -> Page[RequestedEvaluation]:
        """List evaluations, newest first, without `result`. `model`: list only evaluations of this
        model."""

        def fetch(cursor: str | None) -> wire.Page[RequestedEvaluation]:
            params = {"limit": limit, "after": cursor, "order": order, "model": model}
            return self._http.get(wire.Page[RequestedEvaluation], "evaluations", params)

        return first_page(fetch, after)

    def cancel(self, evaluation_id: str) -> RequestedEvaluation:
        """Cancel an evaluation. Raises BadRequestError (`not_cancellable`) if the evaluation has
        ended."""
        path = path_of("evaluations", evaluation_id, "cancel")
        return self._http.post(RequestedEvaluation, path)

    def delete(self, evaluation_id: str) -> EvaluationDeleted:
        """Delete an evaluation. Raises BadRequestError (`not_deletable`) if the evaluation has not
        ended."""
        return self._http.delete(EvaluationDeleted, path_of("evaluations", evaluation_id))

    def wait(
        self,
        evaluation_id: str,
        *,
        timeout: float | None = None,
        on_state: Callable[[RequestedEvaluation], None] = lambda evaluation: None,
    ) -> RequestedEvaluation:
        """Wait until an evaluation has succeeded, and return it. `timeout` is in seconds.

        `on_state`: function that is called with each fetched state. Raises
        EvaluationNotSucceededError if the evaluation fails or is cancelled, and WaitTimeoutError
        after `timeout`.
        """
        deadline = None if timeout is None else self._http.now() + timeout
        pause = _FIRST_POLL
        while True:
            evaluation = self.retrieve(evaluation_id)
            on_state(evaluation)
            if evaluation.status in _END:
                raise EvaluationNotSucceededError(evaluation)
            if evaluation.status is EvaluationStatus.SUCCEEDED:
                return evaluation
            if deadline is not None and self._http.now() + pause > deadline:
                waits = f"; it waits for {evaluation.waiting_for}" if evaluation.waiting_for else ""
                raise WaitTimeoutError(
                    f"{evaluation_id} is {evaluation.status} after {timeout:g} s{waits}",
                    hint="call wait again: the evaluation continues",
                )
            self._http.sleep(pause)
            pause = min(_SLOWEST_POLL, 1.5 * pause)
