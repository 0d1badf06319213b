"""What is chosen, on devices that are not there: free memory is an argument."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import transformers

from tunesmith_schema import PROJECTIONS, LoraRecipe
from tunesmith_worker.engine.memory.choose import (
    FreeMemory,
    Option,
    Planner,
    Speed,
    max_tokens,
    rows_and_passes,
)
from tunesmith_worker.engine.memory.estimate import Policy
from tunesmith_worker.engine.memory.shapes import Engine, MicroBatch, full, lora, shape_of

GIB = 2**30
OURS = frozenset({"attention_block", "mlp_block", "loss"})
LLAMA_8B = shape_of(
    transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
)
H200 = Speed(flops=600e12, host_bandwidth=50e9)


def planner(
    gib: float, *, rows: int = 2, length: int = 4096, on_gpu: bool = True, **changes: object
) -> Planner:
    """Llama 8B, LoRA in bf16."""
    plan = Planner(
        shape=LLAMA_8B,
        tuning=lora(LLAMA_8B, LoraRecipe(r=16), list(PROJECTIONS), bf16=True),
        batch=MicroBatch(
            rows=rows, longest=length, tokens=rows * length, labelled=rows * length, padded=False
        ),
        engine=Engine(ours=OURS, on_gpu=on_gpu, passes=4),
        memory=FreeMemory(free=int(gib * GIB), host_free=200 * GIB, on_gpu=on_gpu),
        speed=H200 if on_gpu else None,
        may_split=False,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]  # fields of Planner, by name


def modes(option: Option) -> tuple[int, int, int]:
    """How many layers keep, recompute, offload."""
    found = [option.policy.mode_of(layer, 32) for layer in range(32)]
    return found.count("keep"), found.count("recompute"), found.count("offload")


def test_8b_on_an_h200_keeps_everything_at_8k_tokens() -> None:
    """Known from arithmetic: 15 GiB of weights and 2.9 MiB a token (ENGINE notes, 3.5)."""
    option = planner(139).choose()
    assert modes(option) == (32, 0, 0)
    assert option.fits
    assert option.cost == 1.0
    assert option.prediction.items["weights"] == pytest.approx(15.0 * GIB, rel=0.02)
    per_token = option.prediction.items["activations"] / 8192 / 2**20
    assert 2.9 <= per_token <= 4.3  # with q and k rotated out of place, as torch's varlen needs


def test_what_does_not_fit_is_recomputed_and_no_more_than_that() -> None:
    plan = planner(40)
    option = plan.choose()
    keep, again, _ = modes(option)
    assert 0 < keep < 32
    assert again
    assert option.fits
    assert not plan.option(Policy(keep=keep + 1, offload=option.policy.offload)).fits
    assert 1.0 < option.cost < plan.option(Policy(keep=0)).cost


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_nothing_is_recomputed_below_nine_tenths_of_a_gpus_memory(rows: int) -> None:
    keep_all = planner(1, rows=rows).option(Policy(keep=32))
    free = keep_all.prediction.peak / GIB / 0.9
    assert modes(planner(free * 1.001, rows=rows).choose()) == (32, 0, 0)
    assert modes(planner(free * 0.999, rows=rows).choose())[0] < 32


def test_less_memory_never_keeps_more() -> None:
    kept = [modes(planner(gib).choose())[0] for gib in (24, 28, 34, 40, 48, 60, 80)]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1] == 32


def test_offload_is_taken_where_the_copy_is_hidden() -> None:
    """Then it buys kept layers; on a slow link, or below 512 tokens, it would cost time."""
    with_offload = planner(34).choose()
    slow = planner(34, speed=Speed(flops=600e12, host_bandwidth=2e9)).choose()
    assert modes(with_offload)[2] > 0
    assert modes(slow)[2] == 0
    assert modes(with_offload)[0] > modes(slow)[0]
    assert with_offload.cost < slow.cost
    short = planner(18.1, rows=1, length=256)
    assert not short.offload_is_free()
    assert modes(short.choose())[2] == 0


def test_offload_that_costs_time_is_the_last_resort_before_nothing_fits() -> None:
    slow = Speed(flops=600e12, host_bandwidth=2e9)
    all_recomputed = planner(1, speed=slow).option(Policy(keep=0))
    least = all_recomputed.prediction.peak / GIB / 0.9
    option = planner(least - 0.5, speed=slow).choose()
    assert option.fits
    assert modes(option)[2] == 31
    assert modes(planner(least + 0.1, speed=slow).choose()) == (0, 32, 0)


def test_the_last_layer_is_never_offloaded() -> None:
    option = planner(20, checkpointing="offload").choose()
    assert modes(option) == (0, 1, 31)
    assert option.policy.mode_of(31, 32) == "recompute"


def test_offload_needs_room_in_the_host() -> None:
    tight = planner(34)
    tight = replace(tight, memory=replace(tight.memory, host_free=0))
    assert modes(tight.choose())[2] == 0


def test_a_cpu_never_offloads() -> None:
    for gib in (20, 40, 80):
        assert modes(planner(gib, on_gpu=False, checkpointing="offload").choose()) == (0, 32, 0)
        assert modes(planner(gib, on_gpu=False).choose())[2] == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [(True, (0, 32, 0)), (False, (32, 0, 0)), ("offload", (0, 1, 31))],
)
@pytest.mark.parametrize("gib", [1, 40, 139])
def test_what_the_user_says_is_done_at_any_memory(
    given: bool | str, expected: tuple[int, int, int], gib: int
) -> None:
    assert modes(planner(gib, checkpointing=given).choose()) == expected


def test_many_tokens_are_split_before_they_are_recomputed() -> None:
    """64K tokens at a time are no faster than 8K, and cost less than computing twice."""
    option = planner(60, rows=16, may_split=True).choose()
    assert option.policy.parts > 1
    assert modes(option) == (32, 0, 0)
    assert option.cost < planner(60, rows=16).choose().cost
    few = planner(18, rows=2, length=256, may_split=True).choose()
    assert few.policy.parts == 1  # such parts would be too short to fill a GPU


def test_a_row_too_long_to_keep_is_recomputed_however_it_is_split() -> None:
    option = planner(40, rows=1, length=32768, may_split=True).choose()
    assert option.policy.parts == 1
    assert modes(option)[0] < 32


def test_out_of_memory_recomputes_more_then_offloads_then_splits_rows() -> None:
    plan, policy = planner(139, rows=4), Policy(keep=32)
    tried = [policy]
    while (found := plan.after_out_of_memory(tried[-1])) is not None:
        tried.append(found)
    assert [one.keep for one in tried[:7]] == [32, 16, 8, 4, 2, 1, 0]
    assert tried[7] == Policy(keep=0, offload=31)
    assert [one.parts for one in tried[8:]] == [2, 4]
    peaks = [plan.option(one).prediction.peak for one in tried]
    assert peaks == sorted(peaks, reverse=True)


def test_out_of_memory_leaves_alone_what_the_user_has_set() -> None:
    plan = planner(139, rows=4, checkpointing=False)
    assert plan.after_out_of_memory(Policy(keep=32)) == Policy(keep=32, parts=2)
    assert plan.after_out_of_memory(Policy(keep=32, parts=4)) is None


def test_full_tuning_counts_gradients_and_both_moments() -> None:
    tuning = full(LLAMA_8B, bf16=True)
    option = replace(planner(125), tuning=tuning).choose()
    assert not option.fits  # 16 bytes a parameter are 120 GiB
    assert replace(planner(139), tuning=tuning).choose().fits
    assert sum(option.prediction.items[name] for name in ("weights", "optimizer", "gradients")) == (
        pytest.approx(16 * LLAMA_8B.parameters, rel=0.01)
    )


def test_the_most_tokens_that_fit_do_and_one_row_more_does_not() -> None:
    plan, policy = planner(60), Policy(keep=32)
    most = max_tokens(plan, policy)
    assert 8192 < most < 65536

    def fits(tokens: int) -> bool:
        batch = MicroBatch(
            rows=-(-tokens // 4096), longest=4096, tokens=tokens, labelled=tokens, padded=False
        )
        return replace(plan, batch=batch).option(policy).fits

    assert fits(most)
    assert not fits(most + 64)
    assert max_tokens(planner(2), policy) == 0


def test_rows_follow_from_tokens_and_the_global_batch_stays() -> None:
    lengths = sorted([700, 650, 300, 200, 100, 90, 80, 70] * 2, reverse=True)

    def tokens_of(rows: int) -> int:
        return sum(lengths[:rows])

    assert rows_and_passes(8, 2, tokens_of=tokens_of, max_tokens=1000) == (1, 16)
    assert rows_and_passes(8, 2, tokens_of=tokens_of, max_tokens=1500) == (2, 8)
    assert rows_and_passes(8, 2, tokens_of=tokens_of, max_tokens=100_000) == (16, 1)
    assert rows_and_passes(3, 1, tokens_of=tokens_of, max_tokens=1) == (1, 3)
    for most in range(500, 6000, 250):
        rows, passes = rows_and_passes(6, 2, tokens_of=tokens_of, max_tokens=most)
        assert rows * passes == 12


def test_a_plan_needs_no_torch() -> None:
    """A light worker estimates the memory of a job."""
    code = "import sys, tunesmith_worker.engine.memory.choose; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
