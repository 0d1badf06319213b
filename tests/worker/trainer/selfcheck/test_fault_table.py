"""The page of planted faults lists what the tests plant, with the outcome that they assert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_events, read_result
from tests.worker.trainer.selfcheck.rollouts.test_planted import ENGINES
from tests.worker.trainer.selfcheck.shadow.test_first_policy_step import FAULTS as POLICY
from tests.worker.trainer.selfcheck.shadow.test_first_step import FAULTS as STEP
from tests.worker.trainer.selfcheck.shadow.test_first_step import FOUR

from . import test_row_lengths, test_tripwires
from .planted import Plant, trained
from .shadow import test_first_policy_step, test_later_steps, test_resumed_step
from .test_planted_faults import FAULTS as BEFORE

Untyped = Any  # Any: transformers is untyped
PAGE = Path(__file__).parents[3] / "planted_faults.md"


def in_file_order(trainer: Untyped) -> None:
    trainer._get_train_sampler = lambda dataset=None: torch.utils.data.SequentialSampler(
        trainer.train_dataset
    )


def lost_between_looks(trainer: Untyped) -> None:
    """The third update does not happen."""
    create = trainer.create_optimizer

    def create_optimizer(*given: Untyped) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = create(*given)
        step = optimizer.step

        def skip(*given: Untyped) -> Untyped:
            return None if trainer.state.global_step == 2 else step(*given)

        optimizer.step = skip  # type: ignore[method-assign,assignment]  # the planted fault
        return optimizer

    trainer.create_optimizer = create_optimizer


SILENT: dict[str, Plant] = {
    "rows in the file's order": in_file_order,
    "an update between two looks is lost": lost_between_looks,
}
STOPPED: dict[str, tuple[object, ...]] = {
    "labels masked, shifted or on the prompt": (
        *(BEFORE["masked labels"], BEFORE["labels one place off"], BEFORE["wrong template"]),
    ),
    "the end of an answer is never a label": (BEFORE["eos never a label"],),
    "an adapter is frozen, switched off or missing": (
        *(BEFORE["frozen adapter"], BEFORE["adapter off"], BEFORE["adapter missing"]),
    ),
    "the kernels compute without the adapter": (BEFORE["kernels without adapter"],),
    "a fresh adapter changes the model": (BEFORE["adapter not neutral"],),
    "a tensor is not in the optimizer": (BEFORE["tensor not in the optimiser"],),
    "rows of a pack see each other": (BEFORE["crossed rows"],),
    "a kernel is wrong by 1 %": (BEFORE["segment_attention 1 % off in forward"],),
    "attention forgets keys from the third tile on": (test_row_lengths.forgets_a_tile,),
    "a window of 100 is ignored": (test_row_lengths.model_with_window,),
    "a NaN weight, a zero row, an untied head": (
        *(BEFORE["NaN weight"], BEFORE["zero embedding row"], BEFORE["untied head"]),
    ),
    "the loss is divided by twice the labels": (STEP["normaliser"],),
    "each micro-batch is divided by its own labels": (STEP["mean of means"],),
    "a micro-batch never runs": (STEP["dropped micro-batch"],),
    "a micro-batch's gradient is lost": (STEP["lost gradient"],),
    "the gradient is never clipped": (STEP["no clipping"],),
    "a learning rate 1,000 times too small": (STEP["small rate"],),
    "half of each update is lost": (STEP["small updates"],),
    "weight decay is forgotten": (STEP["no decay"],),
    "the warm-up is ignored": (STEP["no warm-up"],),
    "a later learning rate is 1,000 times too small": (test_later_steps.smaller_rate_later,),
    "clipping stops after the first step": (test_later_steps.no_clipping_later,),
    "the same rows each step": (test_later_steps.same_rows,),
    "the same prompts each step": (test_later_steps.same_prompts,),
    "a wrong normaliser, lost updates or no clipping after a resume point": tuple(
        test_resumed_step.FAULTS.values()
    ),
    "LoRA's A never changes": (test_later_steps.first_factor_restored,),
    "a flipped advantage": (POLICY["flipped advantage"],),
    "a flipped policy loss": (POLICY["flipped loss"],),
    "rewards of the next completion": (POLICY["shifted rewards"], POLICY["shifted grades"]),
    "transposed groups": (POLICY["transposed groups"], POLICY["interleaved prompts"]),
    "completions trained at another position": (POLICY["shifted completions"],),
    "the reference is the policy": (test_later_steps.policy_as_reference,),
    "rollouts without the adapter": (ENGINES["adapter not used"],),
    "rollouts at another temperature": (ENGINES["other temperature"],),
    "a truncated prompt": (ENGINES["truncated prompt"],),
}
"""Fault -> what the tests plant for it; each of these tests asserts that the run stops."""
WARNED: dict[str, object] = {
    "a grader that draws random numbers": (
        test_first_policy_step.test_a_grader_that_is_not_deterministic_gives_a_warning
    ),
    "no gradient of keys in any layer": (
        test_tripwires.test_a_kind_that_is_silent_in_every_layer_is_a_warning_at_step_10
    ),
}


def page() -> dict[str, str]:
    """Return the outcome of each fault on the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    return {cell[0].strip(): cell[1].strip() for cell in cells[1:]}


def test_the_page_lists_the_planted_faults() -> None:
    expected = {name: "stopped" for name in STOPPED}
    expected |= {name: "warned" for name in WARNED}
    expected |= {name: "silent" for name in SILENT}
    assert page() == expected
    assert len(expected) >= 30
    assert len(SILENT) <= 3


@pytest.mark.parametrize("name", SILENT)
def test_a_silent_fault_is_silent(make_run: MakeRun, name: str) -> None:
    """If such a fault is named one day, its row moves."""
    run = make_run(QUESTIONS, recipe={**FOUR, "max_steps": 4})
    trained(run, SILENT[name])
    assert read_result(run).error is None
    assert not [event.message for event in read_events(run) if event.level == "warn"]
