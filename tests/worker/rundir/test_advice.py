"""Each rule of advice: it fires on its planted fault with the right prediction, and on no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import Choice, PhaseName, Saturation
from tunesmith_worker.rundir.advice.rules import RULES, choose_advice

from .reports import GPU, planned, report, rollouts

UNSATURATED = Saturation(state="not_saturated", text="half is fixed", doubling_gain=0.25)
BY_RULE = Choice(
    name="packing",
    value="padded",
    reason="few tokens",
    figures={"slots_per_token": 1.2, "alternatives": ["padding_free"]},
)
MEASURED = BY_RULE.model_copy(update={"figures": {"tokens_per_second": {"padded": 9.0}}})
"""Choice of an earlier version."""

PLANTED: dict[str, tuple[dict[str, Any], str, float]] = {
    "data_wait": ({"phases": {"data_wait": 40.0}}, "faster or more cores", 40 / 137),
    "padding": (
        {"padding_share": 0.4, "settings": {"layout": "padded"}},
        'recipe.patches="auto"',
        0.4 * 90 / 98,
    ),
    "evaluation": ({"phases": {"evaluation": 98.0}}, "recipe.eval_steps=100", 0.5 * 0.9),
    "checkpointing": ({"phases": {"checkpointing": 49.0}}, "recipe.save_steps=100", 0.9 * 49 / 147),
    "logging": ({"phases": {"logging": 10.0}}, "recipe.logging_steps=10", 9 / 108),
    "small_batches": (
        {"saturation": UNSATURATED},
        "per_device_train_batch_size=8 with gradient_accumulation_steps=2",
        (1 - 1 / 1.25) * 90 / 98,
    ),
    "host": (
        {"device_waits_share": 0.8, "peak_memory": GPU},
        "per_device_train_batch_size=8 with gradient_accumulation_steps=2",
        0.8 * 90 / 2 / 98,
    ),
    "recompute": (
        {"choices": planned(fits=True), "settings": {"gradient_checkpointing": True}},
        "recipe.gradient_checkpointing='auto': keeping all activations is predicted to need "
        "10.00 GiB; available: 12.00 GiB",
        90 / 4 / 98,
    ),
    "generation": (
        {"phases": {"sync": 2.0, "generate": 98.0}, "rollouts": rollouts()},
        "recipe.grpo.num_iterations=2 (two steps on the same completions) or a lower "
        "recipe.grpo.max_completion_length: generating took 100.0 of 198.0 s",
        50 / 198,
    ),
    "ungraded": (
        {"phases": {"generate": 50.0}, "rollouts": rollouts(ungraded_share=0.3)},
        "a grader that scores every completion: 30% of the completions had no reward",
        0.3 * 140 / 148,
    ),
    "zero_std": (
        {"phases": {"generate": 50.0, "grade": 2.0}, "rollouts": rollouts(zero_std_share=0.8)},
        "a larger recipe.grpo.num_generations, or a grader with partial scores: "
        "in 80% of the groups",
        0.8 * 142 / 150,
    ),
    "truncated": (
        {"phases": {"generate": 50.0}, "rollouts": rollouts(truncated_share=0.6)},
        "recipe.grpo.max_completion_length=240",
        0.6 * 140 / 148,
    ),
    "grading": (
        {"phases": {"generate": 20.0, "grade": 30.0}, "rollouts": rollouts()},
        "a cheaper method.reinforcement.grader",
        30 / 148,
    ),
    "log_probs": (
        {"phases": {"log_probs": 20.0}, "rollouts": rollouts()},
        "recipe.grpo.beta=0",
        20 / 118,
    ),
}


def test_every_rule_has_its_fault() -> None:
    assert [rule.name for rule in RULES] == list(PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_finds_its_fault_and_predicts_the_gain(name: str) -> None:
    changes, words, gain = PLANTED[name]
    advice = choose_advice(report(**changes))
    assert advice.rule == name
    assert words in advice.text
    assert advice.gain_share == pytest.approx(gain, abs=1e-3)
    assert f"saves at most {gain:.0%}" in advice.text


def test_a_run_that_spends_its_time_well_is_told_so() -> None:
    advice = choose_advice(report())
    assert (advice.rule, advice.gain_share) == ("none", None)
    assert advice.text.startswith("nothing to gain")


@pytest.mark.parametrize(
    "changes",
    [
        {"phases": {"data_wait": 9.0}},
        {"phases": {"evaluation": 20.0}},
        {"phases": {"checkpointing": 10.0}},
        {"phases": {"logging": 4.9}},
        {"padding_share": 0.19, "settings": {"layout": "padded"}},
        {"padding_share": 0.4},  # padding-free already: it cannot be padding
        {"padding_share": 0.4, "settings": {"layout": "padded"}, "choices": [BY_RULE]},
        {"padding_share": 0.4, "settings": {"layout": "padded"}, "choices": [MEASURED]},
        {"saturation": UNSATURATED, "settings": {"layout": "packed"}},
        {"saturation": UNSATURATED, "settings": {"gradient_accumulation_steps": 1}},
        {"device_waits_share": 0.4},
        {"peak_memory": GPU},
        {"peak_memory": GPU.model_copy(update={"allocated": 100 * 2**30}),
         "settings": {"gradient_checkpointing": True}},
        {"phases": {"evaluation": 98.0}, "settings": {"eval_steps": None}},
        {"phases": {"generate": 60.0}, "rollouts": rollouts()},
        {"phases": {"generate": 98.0}, "rollouts": rollouts(num_iterations=2)},
        {"rollouts": rollouts(truncated_share=0.5, zero_std_share=0.5)},
        {"phases": {"generate": 20.0, "grade": 9.0}, "rollouts": rollouts()},
        {"phases": {"log_probs": 10.0}, "rollouts": rollouts()},
        {"phases": {"checkpointing": 49.0}, "settings": {"save_steps": None}},
    ],
)  # fmt: skip
def test_below_its_threshold_or_where_nothing_can_be_changed_a_rule_is_silent(
    changes: dict[str, Any],
) -> None:
    assert choose_advice(report(**changes)).rule == "none"


def test_answers_that_were_cut_are_not_blamed_on_their_prompts() -> None:
    cut = {"phases": {"generate": 50.0}, "rollouts": rollouts(truncated_share=1, zero_std_share=1)}
    assert choose_advice(report(**cut)).rule == "truncated"


def test_of_several_the_one_that_saves_most_wins() -> None:
    faults = {"phases": {"evaluation": 98.0}, "saturation": UNSATURATED}
    assert choose_advice(report(**faults)).rule == "evaluation"


def test_eval_steps_grow_as_far_as_a_twentieth_of_the_time() -> None:
    advice = choose_advice(report(phases={"evaluation": 32.0}))
    assert "recipe.eval_steps=70" in advice.text  # 32 / 7 of 102.6 s are 4.5 %
    assert advice.gain_share == pytest.approx(32 * 6 / 7 / 130, abs=1e-3)


def test_one_evaluation_that_takes_long_wants_fewer_rows() -> None:
    late = {"phases": {"evaluation": 98.0}, "settings": {"eval_steps": 100}}
    assert "a tenth of the rows" in choose_advice(report(**late)).text


def test_a_short_run_is_told_that_its_start_weighs_much() -> None:
    advice = choose_advice(report(phases={"import": 500.0}))
    assert advice.rule == "none"
    assert "the start took 500.0 of 594.0 s" in advice.text


def test_before_the_first_step_there_is_nothing_to_say() -> None:
    assert "no step" in choose_advice(report(steps=0)).text


def test_the_page_names_every_rule_with_its_threshold_and_every_phase() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "report.md").read_text()
    for rule in RULES:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{rule.name}` |"))
        assert f"{rule.above:.0%}".replace("%", " %") in line or "half" in line, line
    assert [phase for phase in PhaseName if f"`{phase}`" not in page] == []
