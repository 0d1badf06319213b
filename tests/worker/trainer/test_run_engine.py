"""The engine of a run: kept after a resume, replaced or restarted when it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.worker.engine.patches.models import make_model, with_lora
from tests.worker.engine.rollout.rollouts import make_prompts
from tests.worker.engine.rollout.test_choose import workload
from tests.worker.engine.rollout.test_stock import make_gpt2
from tunesmith_schema import Choice, Plan
from tunesmith_worker.engine.rollout import (
    Completion,
    EngineLost,
    EngineUnavailable,
    NativeEngine,
    OnCompletion,
    Request,
    RolloutPlan,
    UnsupportedModel,
)
from tunesmith_worker.engine.rollout import choose as module
from tunesmith_worker.engine.rollout.choose import EngineKind
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices
from tunesmith_worker.trainer.methods.rollouts import rollout_failures
from tunesmith_worker.trainer.run_engine import RESTARTS, RunEngine

Untyped = Any  # Any: transformers is not typed

PROMPTS = make_prompts(5, 9, 3)
REQUESTS = [
    Request(prompt_ids=ids, max_tokens=3 + number, seed=number)
    for number, ids in enumerate(PROMPTS * 2)
]


class DyingEngine(NativeEngine):
    """Stand-in for vLLM: its process dies after `lives` completions in each of its lives."""

    name = "vllm"
    lives = 2
    dies: int | None = None
    """Number of calls that fail; None: all."""
    made = 0
    closed = 0
    starts: Sequence[bool] = ()
    """True for each following start that succeeds; then all starts do."""
    problem: Exception | None = None
    """Error of all starts and calls."""

    def __init__(self, *given: Untyped) -> None:
        super().__init__(*given)
        type(self).made += 1

    def generate(
        self, requests: Sequence[Request], on_completion: OnCompletion | None = None
    ) -> list[Completion]:
        kind = type(self)
        if self.problem is not None:
            raise self.problem
        if kind.dies is not None and kind.dies <= 0:
            return super().generate(requests, on_completion)
        if kind.dies is not None:
            kind.dies -= 1
        super().generate(requests[: kind.lives], on_completion)
        raise EngineLost("the process of vLLM ended by signal 9")

    def start(self) -> None:
        if self.problem is not None:
            raise self.problem
        (starts, *type(self).starts) = type(self).starts or [True]
        if not starts:
            raise EngineLost("vLLM has not started")

    def close(self) -> None:
        type(self).closed += 1


def use_as_vllm(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Untyped]) -> None:
    """Make an engine vLLM's stand-in, and the first choice on a CPU too."""
    kind = EngineKind(
        name="vllm",
        why_not=lambda work: None,
        plan=lambda work: RolloutPlan(weights="merged", max_rows=8),
        make=make,
    )
    monkeypatch.setattr(module, "ENGINES", (kind, *module.ENGINES[1:]))
    monkeypatch.setattr(module, "_why_not_by_default", lambda work: None)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> type[DyingEngine]:
    engine = type("DyingEngine", (DyingEngine,), {})
    use_as_vllm(monkeypatch, engine)
    return engine


class Run:
    """The choices of a run, and what it says."""

    def __init__(self, earlier: Sequence[Choice] = ()) -> None:
        plan = Plan(made_for="test", choices=[*earlier]) if earlier else None
        self.events: list[str] = []
        self.choices = Choices(plan, lambda choice: self.events.append(str(choice.value)))
        self.warnings: list[str] = []
        self.saved: list[list[Choice]] = []

    def engine(self, model: Untyped, fast_inference: Any = "auto") -> RunEngine:
        return RunEngine(
            workload(model),
            fast_inference,
            None,
            self.choices,
            self.warnings.append,
            lambda: self.saved.append([*self.choices.made]),
        )


def generate(engine: RunEngine) -> tuple[list[Completion], list[int]]:
    """Return the completions, and the indices in the order of arrival."""
    arrived: dict[int, Completion] = {}
    order: list[int] = []

    def on_completion(index: int, completion: Completion) -> None:
        assert index not in arrived
        arrived[index] = completion
        order.append(index)

    completions = engine.generate(REQUESTS, on_completion)
    assert [arrived[index] for index in range(len(REQUESTS))] == completions
    return completions, order


def test_a_lost_engine_is_replaced_and_no_completion_is_lost(dying: type[DyingEngine]) -> None:
    model = with_lora(make_model("llama")).eval()
    expected = NativeEngine(model, RolloutPlan(weights="merged", max_rows=8)).generate(REQUESTS)
    run = Run()
    engine = run.engine(model)
    assert engine.name == "vllm"
    completions, order = generate(engine)
    assert sorted(order[:2]) == [0, 1]
    assert [c.token_ids for c in completions] == [c.token_ids for c in expected]
    for one, other in zip(completions, expected, strict=True):
        assert one.policy_logprobs == pytest.approx(other.policy_logprobs, abs=1e-5)
    assert (engine.name, dying.made, dying.closed) == ("native", 1, 1)
    (said,) = run.warnings
    assert "changes from vllm to native: the process of vLLM ended by signal 9" in said
    assert [choice.value for choice in run.saved[-1]] == ["native", "merged"]
    assert "the engine vllm failed in this run" in run.saved[-1][0].reason
    generate(engine)
    assert dying.made == 1


def test_a_demanded_engine_starts_again_and_then_fails(dying: type[DyingEngine]) -> None:
    model = with_lora(make_model("llama")).eval()
    run = Run()
    dying.dies = 1
    engine = run.engine(model, True)
    generate(engine)
    assert (engine.name, dying.made, dying.closed) == ("vllm", 2, 1)
    assert "starts again (restart 1 of 2)" in run.warnings[0]
    assert run.warnings[0].endswith(". The missing completions are generated again.")
    dying.dies, dying.lives = None, 0
    with pytest.raises(RunError) as caught, rollout_failures():
        engine.generate(REQUESTS)
    failure = caught.value.failure
    assert (failure.code, failure.category) == ("engine_lost", "infrastructure")
    assert len(run.warnings) == RESTARTS
    assert run.saved == []


@pytest.mark.parametrize(("fast_inference", "then"), [(True, "vllm"), ("auto", "native")])
def test_an_engine_that_does_not_start_is_lost(
    dying: type[DyingEngine], fast_inference: Any, then: str
) -> None:
    run = Run()
    dying.starts = [False]
    engine = run.engine(make_model("llama"), fast_inference)
    engine.start()
    assert engine.name == then
    (said,) = run.warnings
    assert said.endswith("vLLM has not started."), "no completion is missing yet"
    dying.starts = [False] * RESTARTS
    if fast_inference is True:
        engine.start()
        with pytest.raises(EngineLost, match="vLLM has not started"):
            engine.start()
    engine.start()
    assert (engine.name, len(run.warnings)) == (then, 2 if fast_inference is True else 1)


WRONG = EngineUnavailable("the server computes in bfloat16", "Start it with --dtype float32.")


@pytest.mark.parametrize("method", ["start", "generate"])
def test_a_wrong_server_is_not_tried_again(dying: type[DyingEngine], method: str) -> None:
    dying.problem = WRONG
    run = Run()
    engine = run.engine(make_model("llama"))
    getattr(engine, method)(*([REQUESTS] if method == "generate" else []))
    assert engine.name == "native"
    [said] = run.warnings
    assert said.endswith(
        "to native: the server computes in bfloat16. Start it with --dtype float32."
    )
    run = Run()
    engine = run.engine(make_model("llama"), True)
    with pytest.raises(RunError) as caught, rollout_failures():
        getattr(engine, method)(*([REQUESTS] if method == "generate" else []))
    failure = caught.value.failure
    assert (failure.code, failure.category) == ("recipe_invalid", "user"), "failed for good"
    assert str(failure.hint).startswith("Start it with --dtype float32. With recipe.rollout.fast_")
    assert run.warnings == []


def test_a_model_that_vllm_does_not_support_gets_the_next_engine(dying: type[DyingEngine]) -> None:
    dying.problem = UnsupportedModel("lm_head: an adapter")
    run = Run()
    engine = run.engine(make_model("llama"))
    engine.start()
    assert engine.name == "native"
    assert run.warnings[0].endswith("vllm to native: vllm does not support lm_head: an adapter.")
    with pytest.raises(UnsupportedModel):
        Run().engine(make_model("llama"), True).start()


def test_a_resumed_run_keeps_its_engine(dying: type[DyingEngine]) -> None:
    model = make_model("llama")
    first = Run()
    assert first.engine(model, False).name == "native"
    again = Run(first.choices.made)
    assert again.engine(model).name == "native"
    assert again.choices.made == first.choices.made
    assert dying.made == 0
    other = Run([choice.model_copy(update={"value": "gone"}) for choice in first.choices.made[:1]])
    assert other.engine(model).name == "vllm"
    assert "there is no such engine" in other.warnings[0]


def test_an_engine_of_plan_json_that_cannot_serve_is_chosen_again() -> None:
    native = Run()
    native.engine(make_model("llama"))
    run = Run(native.choices.made)
    assert run.engine(make_gpt2()).name == "transformers"
    assert "plan.json says rollout_engine=native, but the native engine does not" in run.warnings[0]
    assert run.warnings[1].startswith("Generation is slow: it uses transformers, which takes ")
    assert run.events == ["transformers", "in_place"]


def test_transformers_is_the_last_engine() -> None:
    run = Run()
    engine = run.engine(make_model("llama"))
    assert engine.fall_back("a fault")
    assert engine.name == "transformers"
    assert not engine.fall_back("another fault")
    assert not Run().engine(make_model("llama"), False).fall_back("a fault")


def test_another_model_is_generated_without_vllm(dying: type[DyingEngine]) -> None:
    engine = Run().engine(make_model("llama"))
    other = engine.engine_for(make_model("llama", seed=1))
    assert (engine.name, other.name) == ("vllm", "native")


def test_interruptions_reach_the_engine() -> None:
    engine = Run().engine(make_model("llama"))
    calls = []

    def interrupted() -> bool:
        calls.append(1)
        return False

    engine.interrupted = interrupted
    engine.generate([replace(REQUESTS[0], max_tokens=4)])
    assert calls
    assert (engine.batch_invariant, engine.stable_length) == (True, None)
    assert (engine.samples_from_uniforms, engine.follows_dtype) == (True, True)
    assert engine.figures.generated_tokens == 4


def test_a_demand_that_cannot_be_met_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(RunError) as caught, rollout_failures():
        Run().engine(make_model("llama"), True)
    failure = caught.value.failure
    assert (failure.code, failure.param) == ("recipe_invalid", "recipe.rollout.fast_inference")
    assert isinstance(caught.value.__cause__, EngineUnavailable)
    assert failure.hint == (
        "Install vLLM in the trainer's environment. With recipe.rollout.fast_inference='auto', "
        "another engine generates the completions."
    )
