"""benchmarks.gpu on tiny shapes: what its first run on a GPU will do, done on a CPU."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import parity
from benchmarks.gpu.__main__ import environment
from benchmarks.gpu.bars import BARS, judge
from benchmarks.gpu.children import ROOT, Job, run_all
from benchmarks.gpu.order import CHECKED, PARTS, absent, all_jobs
from benchmarks.gpu.record import Record
from benchmarks.gpu.work import WORK
from benchmarks.kernel_operations import OPERATIONS, SHAPES

from tests.uninstalled import hide_metadata

ABSENT = ("bitsandbytes", "celery", "fastapi", "obstore", "pydantic_settings", "sqlalchemy")
"""What our package brings and a host for GPUs does not."""
BROKEN = "base_model.model.model.layers.1.mlp.down_proj.lora_A.default.weight"


@pytest.mark.slow
def test_all_parts_run_without_the_service_beside_one_that_is_broken(tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    for name in ABSENT:
        (stubs / name).mkdir(parents=True)
        (stubs / name / "__init__.py").write_text(f"raise ImportError('{name} is not here')\n")
    hide_metadata(stubs)
    jobs = [
        Job(part="parity", module="benchmarks.gpu.none", seconds=60),
        _job("kernels", "ceilings", "tiny/rms_norm", "tiny/head_rows", "tiny/attention_paths"),
        _job("correctness", "tiny/rms_norm", "tiny/head_rows", "gpu_tests"),
        _job("parity", "tiny-llama/fp32", "tiny-qwen/bf16"),
        _job("speed", *(f"tiny-llama/ours/{one}/1" for one in ("no-recompute", "profile"))),
        _job(
            "grpo",
            "tiny-qwen/ours/lora/1",
            "tiny-qwen/stock/lora/1",
            "tiny-qwen/decode/8",
            "tiny-qwen/ragged/8",
        ),
    ]
    record = Record(tmp_path, list(PARTS), tiny=True, minutes=3)
    env = environment(tiny=True) | {"PYTHONPATH": str(stubs)}
    run_all(jobs, record, time.monotonic() + 180, env)
    results = record.results
    (error,) = results["errors"]
    assert (error["part"], error["case"]) == ("parity", "all of it")
    assert "No module named benchmarks.gpu.none" in error["error"]
    for one in jobs[1:]:
        assert tuple(case for case in results[one.part] if case in one.cases) == one.cases
    tests = results["correctness"]["gpu_tests"]
    assert tests["passed"]
    assert tests["tests"] == tests["skipped"] > 0
    fp32, bf16 = (results["parity"][case] for case in jobs[3].cases)
    assert fp32["patched"] == "patched 2 x attention_block, 1 x loss, 2 x mlp_block"
    assert 0 < fp32["worst"] <= 1e-5 <= 1e-2 <= fp32["median_gradient"]
    assert 0.5 < bf16["worst"] <= 1.5
    trained, profiled = (results["speed"][case] for case in jobs[4].cases)
    assert trained["tokens_per_step"] == 64
    assert (len(trained["warm_up_seconds"]), len(trained["step_seconds"])) == (1, 2)
    assert trained["recompute"] is False
    assert 0 < trained["model_tflop_per_s"] < trained["blas_tflop_per_s"] * 2
    assert any("_LoraLinearBackward" in line for line in profiled["top"])
    drawn, _, decoded, ragged = (results["grpo"][case] for case in jobs[5].cases)
    assert 0 < drawn["sync_share"] < 1
    assert (len(drawn["warm_up_seconds"]), len(drawn["step_seconds"])) == (1, 2)
    assert decoded["adapter_on_base"] > 0.3
    assert decoded["graphs_speed_up"] > 0.3
    assert ragged["decode_steps"] > 5
    assert (decoded["graph_steps"], decoded["decode_steps"]) == (0, 5), "a CPU has no graphs"
    assert results["versions"]["torch"] == torch.__version__


def _job(part: str, *cases: str) -> Job:
    return Job(part=part, module=f"benchmarks.gpu.{part}", cases=cases, seconds=60)


@pytest.mark.parametrize("shape", ["llama-8b", "qwen-1.5b"])
def test_every_operation_has_its_work_counted_and_two_counts_agree(shape: str) -> None:
    assert WORK.keys() == OPERATIONS.keys()
    for name, make in OPERATIONS.items():
        work = WORK[name](SHAPES[shape])
        assert work.elements or work.attention, name
        if not work.products and not work.attention:
            problem = make(SHAPES[shape], torch.device("meta"), torch.bfloat16)
            assert problem.least_bytes == 2 * work.elements, name


def test_the_first_ten_minutes_have_what_matters_most() -> None:
    """Every part once on the models that have bars; then more rounds, models and profiles."""
    jobs = all_jobs(PARTS, tiny=False, rounds=2)
    first = list(dict.fromkeys(job.part for job in jobs))
    assert first == ["correctness", "parity", "speed", "kernels", "grpo", "memory", "precision"]
    cases = [case for job in jobs for case in job.cases]
    assert cases[: 2 * len(CHECKED)] == [
        f"{shape}/{name}" for shape in ("llama-8b", "qwen-1.5b") for name in CHECKED
    ]
    assert set(CHECKED) == {*OPERATIONS, "head_rows"}
    again = cases.index("llama-3.1-8b/ours/profile/1")
    before, after = cases[:again], cases[again:]
    sides = ["ours", "stock"]
    sides += [
        side
        for side, package in (("liger", "liger_kernel"), ("unsloth", "unsloth"))
        if importlib.util.find_spec(package)
    ]
    barred = ("llama-3.1-8b", "qwen2.5-1.5b")
    assert [case for case in before if case.endswith("/no-recompute/1")] == [
        f"{model}/{side}/no-recompute/1" for model in barred for side in sides
    ]
    second = [case for case in after if case.endswith("/no-recompute/2")]
    assert second[: 2 * len(sides)] == [
        f"{model}/{side}/no-recompute/2" for model in barred for side in reversed(sides)
    ]
    assert "llama-3.2-1b/bytes" in before
    assert cases[-1] == "qwen2.5-0.5b/loss", "it takes minutes"
    assert len(set(cases)) == len(cases)


def test_parts_can_be_chosen_and_what_is_not_compared_has_a_reason() -> None:
    assert {job.part for job in all_jobs(["memory", "grpo"], tiny=False, rounds=1)} == {
        "memory",
        "grpo",
    }
    assert [(case, why) for _, case, why in absent(PARTS, tiny=True)] == [
        ("tiny/liger", "needs a GPU"),
        ("tiny/unsloth", "needs a GPU"),
    ]
    assert ("speed", "all models/unsloth", "unsloth is not installed") in absent(PARTS, tiny=False)
    assert absent(["grpo"], tiny=False) == []


def test_the_ceiling_has_the_products_of_a_step() -> None:
    """Their operations are those of `operations_per_token`, without attention."""
    from benchmarks.gpu.models import operations_per_token, products_of_step
    from benchmarks.gpu.timing import operations, sustained_rate

    cpu = torch.device("cpu")
    for name, widths in (("tiny-llama", 300), ("tiny-qwen", 300)):
        model, _ = parity.prepared(name, cpu, torch.float32)
        products = products_of_step(model, 10)
        assert operations(products) == 10 * operations_per_token(model, 0)
        assert len(products) == 2 * (2 * 4 + 1), "q, k and v are one matrix, gate and up another"
        assert products[0] == (10, 64, 64 + 2 * 32)
        assert products[-2] == (10, 64, widths)
    assert sustained_rate(products, cpu, torch.float32) > 0


def test_the_results_are_in_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start, so that a run that is killed at once leaves its reasons."""
    from benchmarks.gpu import __main__ as program

    seen: list[str] = []

    def run(jobs: Any, record: Record, *_: Any) -> None:
        seen.extend(path.name for path in (tmp_path / "out").iterdir())
        record.add_facts({"device": "A GPU"})
        record.add("parity", "a", {"worst": 1.0}, 0.1)

    monkeypatch.setattr(program, "run_all", run)
    before = sorted(program.RESULTS.iterdir())
    monkeypatch.setattr("sys.argv", ["gpu", "--tiny", "--out", str(tmp_path / "out")])
    assert program.main() == 0
    assert seen == ["gpu-unknown-tiny.json"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gpu-a-gpu-tiny.json"]
    assert sorted(program.RESULTS.iterdir()) == before


def test_sides_of_reinforcement_alternate_and_all_that_its_bars_need_is_run() -> None:
    cases = [case for job in all_jobs(["grpo"], tiny=False, rounds=2) for case in job.cases]
    model = "qwen2.5-1.5b"
    turns = ("ours/lora/1", "stock/lora/1", "stock/lora/2", "ours/lora/2")
    assert [case for case in cases if "/lora/" in case] == [f"{model}/{turn}" for turn in turns]
    found = {"seconds_per_step": 2.0, "sync_share": 0.01, "adapter_on_base": 0.96}
    results: dict[str, Any] = {"grpo": {case: found for case in cases}}  # Any: JSON
    results["grpo"][f"{model}/stock/lora/1"] = found | {"seconds_per_step": 5.0}
    results["grpo"][f"{model}/decode/32"] = found | {"adapter_on_base": float("nan")}
    judged = [(one["figure"], one["met"]) for one in judge(results) if one["figure"] is not None]
    assert judged[:4] == [(1.75, False), (1.0, True), (0.01, True), (0.96, True)]
    assert judged[4][1] is False
    assert judged[5] == (0.96, True)


def test_bars_are_met_missed_or_open() -> None:
    results: dict[str, Any] = {  # Any: JSON
        "kernels": {
            "ceilings": {"bf16_tflop_per_s": 900.0},
            "s/a": {"bound": "bandwidth", "barred": True, "ratio": 0.85},
            "s/b": {"bound": "bandwidth", "barred": True, "ratio": 0.7},
            "s/c": {"bound": "bandwidth", "barred": False, "ratio": 0.1},
        },
        "parity": {"m/fp32": {"worst": 4e-6}, "m/bf16": {"worst": 1.6}},
        "speed": {
            f"llama-3.1-8b/{side}/no-recompute/{turn}": {
                "tokens_per_second": rate,
                "peak_gib": 40.0,
                "model_tflop_per_s": 490.0,
                "blas_tflop_per_s": 700.0,
            }
            for side, rates in (("ours", (14_000, 12_000, 13_800)), ("stock", (7_000, 6_900)))
            for turn, rate in enumerate(rates)
        },
    }
    judged = {one["bar"]: (one["figure"], one["met"]) for one in judge(results)}
    assert len(judged) == len(BARS)
    assert judged["kernels limited by bandwidth: lowest rate relative to the copy bandwidth"] == (
        0.7,
        False,
    )
    assert judged["kernels limited by matrix products: lowest rate relative to BLAS"] == (
        None,
        None,
    )
    assert judged["parity fp32: worst error of a gradient"] == (4e-6, True)
    assert judged["parity bf16: worst error relative to the stock model"] == (1.6, False)
    assert judged["llama-3.1-8b: tokens/s"] == (13_800, True)
    share = "llama-3.1-8b: share of the sustained BLAS rate of the model's matrix products"
    assert judged[share] == (0.7, False)
    assert judged["llama-3.1-8b, no-recompute: speed relative to stock"] == (1.986, True)
    assert judged["llama-3.1-8b, no-recompute: peak memory relative to stock"] == (1.0, True)
    assert judged["qwen2.5-1.5b: tokens/s"] == (None, None)


def test_a_figure_that_is_no_number_misses_its_bar_wherever_it_stands() -> None:
    nan = float("nan")
    results: dict[str, Any] = {  # Any: JSON
        "kernels": {
            f"s/{name}": {"bound": "bandwidth", "barred": True, "ratio": ratio}
            for name, ratio in (("a", 0.9), ("b", nan), ("c", 0.9))
        },
        "parity": {
            f"{name}/{dtype}": {"worst": worst}
            for name, worst in (("a", 1e-6), ("b", nan), ("c", 1e-6))
            for dtype in ("fp32", "bf16")
        },
    }
    judged = {one["bar"]: (one["figure"], one["met"]) for one in judge(results)}
    assert judged["kernels limited by bandwidth: lowest rate relative to the copy bandwidth"] == (
        0.0,
        False,
    )
    assert judged["parity fp32: worst error of a gradient"] == (float("inf"), False)
    assert judged["parity bf16: worst error relative to the stock model"] == (float("inf"), False)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_gradient_of_nan_fails_the_parity_check(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = parity.step, []

    def broken(*given: Any) -> dict[str, torch.Tensor]:  # Any: as step takes them
        found = step(*given)
        steps.append(found)
        if len(steps) == 2:  # ours, after stock
            found[BROKEN].fill_(torch.nan)
        return found

    monkeypatch.setattr(parity, "step", broken)
    result = parity.CHECKS[dtype]("tiny-llama", torch.device("cpu"))
    assert (result["worst"], result["passed"]) == (float("inf"), False)
    assert BROKEN.partition("layers.1.")[2].partition(".default")[0] in result["worst_tensor"]


def test_the_wheels_to_carry_are_those_that_we_test_with() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    carried = re.findall(
        r"^([\w-]+)==(\S+)$", (ROOT / "requirements-gpu-bench.txt").read_text(), re.M
    )
    assert carried
    # Liger is measured against, and no part of ours.
    differing = {name: given for name, given in carried if pinned.get(name) not in (None, given)}
    assert differing == {}
    assert [name for name, _ in carried if name not in pinned] == ["liger-kernel"]
