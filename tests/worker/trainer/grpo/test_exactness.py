"""A reinforcement run that was interrupted ends, bit for bit, as one that was not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import Killed, interrupt, metrics_of, weights_hash
from tunesmith_schema import EventKind
from tunesmith_worker.engine.rollout import Completion, FinishReason, NativeEngine
from tunesmith_worker.engine.rollout.decoder import Decoder
from tunesmith_worker.trainer.methods.kept_rollouts import KeptRollouts
from tunesmith_worker.trainer.run import main

ASKED = [{"prompt": f"How much is {a} plus {a}?", "answer": str(2 * a)} for a in range(6)]
LENGTH = {"type": "length", "unit": "characters", "target": 4, "limit": 40}
"""A reward that a random model's completions do not all share."""
BASE: dict[str, Any] = {
    "max_steps": 5,
    "learning_rate": 1e-2,
    "save_steps": 1,
    "self_check": False,
    "lora": {"r": 4},
}
GRPO: dict[str, Any] = {
    "num_generations": 3,
    "prompts_per_step": 2,
    "max_completion_length": 8,
}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "the same completions thrice, and a reference": {
        "grpo": GRPO | {"num_iterations": 3, "beta": 0.1},
        "self_check": True,  # a resumed run has no rollout for the check's later looks
    },
    "full bf16_split_master": {"tuning": "full", "lora": None, "precision": "bf16_split_master"},
}


def make(make_run: MakeRun, name: str, recipe: dict[str, Any], **spec: Any) -> Path:
    given = BASE | {"grpo": GRPO} | recipe
    return make_run(ASKED, recipe=given, name=name, method="reinforcement", grader=LENGTH, **spec)


def samples(run: Path) -> dict[str, list[Any]]:
    found = {path.name: path.read_text() for path in sorted((run / "samples").glob("*.jsonl"))}
    return {name: [json.loads(line) for line in text.splitlines()] for name, text in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_a_step_it_ends_as_if_nothing_had_been(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    whole = make(make_run, "whole", KINDS[kind])
    assert main(whole) == 0, read_result(whole).error
    broken = make(make_run, "broken", KINDS[kind])
    assert interrupt(broken, monkeypatch, kill=4) == 1
    assert main(broken) == 0
    (resumed,) = event_data(broken, EventKind.RESUMED)
    assert 0 < resumed["step"] < 4
    assert weights_hash(broken) == weights_hash(whole)
    assert metrics_of(broken) == metrics_of(whole)
    assert samples(broken) == samples(whole)
    assert not any("Tripwire" in event.message for event in read_events(broken))


def test_a_fork_in_the_middle_of_its_iterations_draws_anew(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was drawn is another policy's at another temperature, and has no reference."""
    run = make(make_run, "run", {"grpo": GRPO | {"num_iterations": 3}, "max_steps": 6})
    assert interrupt(run, monkeypatch, kill=5) == 1
    spec = json.loads((run / "spec.json").read_text())
    spec["recipe"]["grpo"] |= {"beta": 0.1, "temperature": 0.5}
    (run / "spec.json").write_text(json.dumps(spec | {"forked": True}))
    assert main(run) == 0, read_result(run).error
    before = [data["step"] for data in event_data(run, EventKind.RESUMED)]
    assert before[-1] == 4, "in the middle of steps 4 to 6"
    assert [data["step"] for data in event_data(run, EventKind.SAMPLES)] == [1, 4, 5]


def test_what_was_drawn_before_a_kill_is_not_drawn_again(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(make_run, "whole", {})
    assert main(whole) == 0
    broken = make(make_run, "broken", {})
    asked: list[int] = []
    generate, add = NativeEngine.generate, KeptRollouts.add

    def counted(engine: NativeEngine, requests: Any, *rest: Any) -> Any:
        asked.append(len(requests))
        return generate(engine, requests, *rest)

    def killed(kept: KeptRollouts, *given: Any) -> None:
        add(kept, *given)
        if len(asked) == 1 and len((broken / "rollouts.jsonl").read_text().splitlines()) == 5:
            raise Killed

    monkeypatch.setattr(NativeEngine, "generate", counted)
    with monkeypatch.context() as patched:
        patched.setattr(KeptRollouts, "add", killed)
        assert main(broken) == 1
    assert main(broken) == 0
    assert asked[:3] == [6, 2, 6]
    told = [one.message for one in read_events(broken) if "an earlier attempt" in one.message]
    assert told == ["Step 1 reuses 4 of its 6 completions from an earlier attempt."]
    assert weights_hash(broken) == weights_hash(whole)
    assert samples(broken) == samples(whole)


def test_asked_to_leave_while_it_draws_it_leaves_at_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"save_steps": "auto", "grpo": GRPO | {"num_iterations": 2}, "max_steps": 4}
    whole = make(make_run, "whole", recipe)
    assert main(whole) == 0
    broken = make(make_run, "broken", recipe)
    steps: list[int] = []
    decode = Decoder.step

    def paused(decoder: Decoder, *given: Any) -> Any:
        steps.append(1)
        if len(steps) == 7 + 3:  # 8 tokens of the first step, the first of which is the prompt's
            os.kill(os.getpid(), signal.SIGTERM)
        return decode(decoder, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "step", paused)
        assert main(broken) == 75
    assert len(steps) == 7 + 3
    assert read_result(broken).step == 2
    assert main(broken) == 0
    assert [one["step"] for one in event_data(broken, EventKind.RESUMED)] == [2]
    assert weights_hash(broken) == weights_hash(whole)
    assert metrics_of(broken) == metrics_of(whole)


def test_completions_of_another_spec_or_step_are_drawn_anew(tmp_path: Path) -> None:
    one = Completion(
        token_ids=[5, 2],
        sampling_logprobs=[-0.5, -0.25],
        policy_logprobs=[-0.5, -0.25],
        finish_reason=FinishReason.STOP,
        stop_reason=2,
    )
    path = tmp_path / "rollouts.jsonl"
    kept = KeptRollouts(path, "this")
    assert kept.begin(3, resumed=True, count=4, partly=True) == {}
    kept.add(2, one)
    kept.close()
    with path.open("a") as file:
        file.write('{"place": 1, "token_')  # a kill
    for made_for, step, resumed, count, partly in (
        ("other", 3, True, 4, True),
        ("this", 2, True, 4, True),
        ("this", 3, True, 8, True),
        ("this", 3, False, 4, True),
        ("this", 3, True, 4, False),
    ):
        before = path.read_bytes()
        other = KeptRollouts(path, made_for)
        assert other.begin(step, resumed=resumed, count=count, partly=partly) == {}
        other.close()
        path.write_bytes(before)
    again = KeptRollouts(path, "this")
    assert again.begin(3, resumed=True, count=4, partly=True) == {2: one}
    again.close()
    assert [json.loads(line).get("place") for line in path.read_text().splitlines()] == [None, 2]
