"""One event of a run says which path it took: our kernels and where, or the stock trainer."""

from __future__ import annotations

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_events
from tunesmith_worker.trainer.run import main

AUTO = "patched 2 x attention_block, 1 x loss, 2 x mlp_block"
ALONG = "patched 2 x attention (required for packed rows), 2 x mlp_block"


@pytest.mark.parametrize(
    ("patches", "said"),
    [
        ("auto", AUTO),
        ("off", "no kernels patched: recipe.patches is 'off'"),
        (["loss"], "patched 1 x loss"),
        (["mlp_block"], ALONG),
        (["attention", "mlp_block"], "patched 2 x attention, 2 x mlp_block"),
    ],
    ids=str,
)
def test_a_run_says_which_path_it_took(make_run: MakeRun, patches: object, said: str) -> None:
    recipe = {"max_steps": 1, "per_device_train_batch_size": 2, "patches": patches}
    run = make_run(QUESTIONS, recipe=recipe)
    assert main(run) == 0
    messages = [event.message for event in read_events(run)]
    paths = [one for one in messages if one.startswith(("patched", "no kernels patched"))]
    assert paths == [said]
