"""The rollout engine of a run: chosen once, reused after a resume, and replaced after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from tunesmith_schema import Choice
from tunesmith_worker.engine.rollout import (
    Completion,
    EngineLost,
    EngineName,
    EngineUnavailable,
    ModelEngine,
    OnCompletion,
    Request,
    RolloutFigures,
    RolloutPlan,
    UnsupportedModel,
)
from tunesmith_worker.engine.rollout.choose import (
    EngineChoice,
    EngineKind,
    FastInference,
    Workload,
    choose_engine,
    engine_kind,
)
from tunesmith_worker.engine.rollout.stock import SLOWER
from tunesmith_worker.rundir.plan import Choices

Untyped = Any  # Any: transformers is not typed

ENGINE = "rollout_engine"
"""Key under which plan.json stores the engine's name."""
WEIGHTS = "rollout_weights"
"""Key under which plan.json stores how the rollout reads the weights."""
RESTARTS = 2
"""Number of restarts of an engine in a run, if the recipe allows no other engine."""


class RunEngine:
    """`ModelEngine` that forwards all calls to the engine in use.

    If the engine in use stops working, another engine replaces it (`fast_inference="auto"`) or the
    same engine starts again (any other value). The new or restarted engine generates the
    completions that are still missing."""

    def __init__(
        self,
        workload: Workload,
        fast_inference: FastInference,
        tokenizer: Untyped,
        choices: Choices,
        warn: Callable[[str], None],
        save_plan: Callable[[], None] = lambda: None,
    ) -> None:
        """`save_plan`: function that writes plan.json after a replacement of the engine.

        Raises EngineUnavailable if no allowed engine can be used, and RolloutDoesNotFit if memory
        is too small.
        """
        self._workload, self._fast_inference, self._tokenizer = workload, fast_inference, tokenizer
        self._choices, self._warn, self._save_plan = choices, warn, save_plan
        self._failed: list[EngineName] = []
        self._restarts = 0
        self.interrupted: Callable[[], bool] = lambda: False
        """See ModelEngine."""
        self._kind, is_new = self._choose_first()
        self.plan = self._plan_memory(is_new)
        """Memory plan of the engine in use."""
        self._engine: ModelEngine | None = self._make()

    @property
    def name(self) -> EngineName:
        return self._kind.name

    @property
    def weights(self) -> Literal["merged", "in_place"]:
        return self.plan.weights

    @property
    def figures(self) -> RolloutFigures:
        return self._current.figures

    @property
    def batch_invariant(self) -> bool:
        return self._current.batch_invariant

    @property
    def stable_length(self) -> int | None:
        return self._current.stable_length

    @property
    def samples_from_uniforms(self) -> bool:
        return self._current.samples_from_uniforms

    @property
    def follows_dtype(self) -> bool:
        return self._current.follows_dtype

    @property
    def _current(self) -> ModelEngine:
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        """Generate completions; see `RolloutEngine`.

        Raises EngineLost or EngineUnavailable if no engine can continue. Other errors of an engine
        are raised unchanged."""
        done: dict[int, Completion] = {}
        while True:
            missing = [place for place in range(len(requests)) if place not in done]

            def arrive(number: int, completion: Completion, places: list[int] = missing) -> None:
                done[places[number]] = completion
                if on_completion is not None:
                    on_completion(places[number], completion)

            try:
                engine = self._current
                engine.interrupted = self.interrupted
                generated = engine.generate([requests[place] for place in missing], arrive)
            except EngineLost as error:
                self._recover(error, " The missing completions are generated again.")
            except EngineUnavailable as error:
                if not self.fall_back(f"{error}. {error.remedy}"):
                    raise
            else:
                done.update(zip(missing, generated, strict=True))
                return [done[place] for place in range(len(requests))]

    def start(self) -> None:
        """Start the rollout engine. If the start fails, the engine is replaced by another engine,
        or `generate` starts the same engine again. Raises UnsupportedModel and EngineUnavailable if
        the recipe allows only the engine that failed to start."""
        try:
            self._current.start()
        except EngineLost as error:
            self._recover(error)
        except EngineUnavailable as error:
            if not self.fall_back(f"{error}. {error.remedy}"):
                raise
        except UnsupportedModel as error:
            if not self.fall_back(f"{self.name} does not support {error}."):
                raise

    def fall_back(self, why: str) -> bool:
        """Replace the engine if the recipe allows another engine, and write an event with the
        reason `why`. Return False if no other engine is allowed."""
        if self._fast_inference != "auto" or self.name == "transformers":
            return False
        self._failed.append(self.name)
        before = self.name
        self.close()
        choice = choose_engine(self._fast_inference, self._workload, without=self._failed)
        self._kind = choice.kind
        self._warn(f"The rollout engine changes from {before} to {self.name}: {why}")
        self._choices.replace(_engine_choice(choice))
        self.plan = choice.kind.plan(self._workload)
        self._choices.replace(_weights_choice(self.plan))
        self._save_plan()
        return True

    def engine_for(self, model: Untyped) -> ModelEngine:
        """Return an engine for another model of the same shape, for example the base model.

        vLLM would load the model a second time, so the native engine or transformers is used."""
        if self.name != "vllm":
            return self._kind.make(model, self.plan, self._tokenizer)
        kind = choose_engine(False, self._workload).kind
        return kind.make(model, kind.plan(self._workload), self._tokenizer)

    def close(self) -> None:
        """Free the engine in use."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _recover(self, error: EngineLost, then: str = "") -> None:
        """Replace the failed engine by another engine. If the recipe allows no replacement, close
        the failed engine, so that the next call of `generate` starts it again. `then`: last
        sentence of the warning. Raises `error` after RESTARTS restarts."""
        if self.fall_back(f"{error}.{then}"):
            return
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise error
        self._warn(
            f"The rollout engine {self.name} starts again (restart {self._restarts} of "
            f"{RESTARTS}): {error}.{then}"
        )
        self.close()

    def _make(self) -> ModelEngine:
        return self._kind.make(self._workload.model, self.plan, self._tokenizer)

    def _choose_first(self) -> tuple[EngineKind, bool]:
        """Return the engine of an earlier attempt if it can be used, else choose an engine."""
        earlier = self._choices.earlier(ENGINE)
        if earlier is not None:
            kind = engine_kind(earlier.value)
            why_not = "there is no such engine" if kind is None else kind.why_not(self._workload)
            if kind is not None and why_not is None:
                self._choices.reuse(earlier)
                return kind, False
            self._warn(
                f"plan.json says {ENGINE}={earlier.value}, but {why_not}. The engine is chosen "
                "again, so completions differ from an uninterrupted run."
            )
        choice = choose_engine(self._fast_inference, self._workload)
        self._choices.add(_engine_choice(choice))
        if choice.kind.name == "transformers":
            why_not = choice.refusals.get("native", choice.reason)
            self._warn(
                f"Generation is slow: it uses transformers, which takes {SLOWER} as long as the "
                f"native engine. Reason: {why_not}."
            )
        return choice.kind, True

    def _plan_memory(self, is_new: bool) -> RolloutPlan:
        earlier = self._choices.earlier(WEIGHTS)
        if earlier is not None and not is_new:
            self._choices.reuse(earlier)
            return RolloutPlan(
                weights="merged" if earlier.value == "merged" else "in_place",
                max_rows=int(str(earlier.figures["max_rows"])),
                row_tokens=self._workload.prompt_tokens + self._workload.max_tokens,
            )
        plan = self._kind.plan(self._workload)
        self._choices.add(_weights_choice(plan))
        return plan


def _engine_choice(choice: EngineChoice) -> Choice:
    return Choice(
        name=ENGINE, value=choice.kind.name, reason=choice.reason, figures=choice.figures()
    )


def _weights_choice(plan: RolloutPlan) -> Choice:
    return Choice(name=WEIGHTS, value=plan.weights, reason=plan.reason, figures=plan.figures())
