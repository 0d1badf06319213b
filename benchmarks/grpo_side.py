"""Measure GRPO steps of one trainer (ours or stock TRL) for grpo.py. Prints one JSON line.

Our trainer trains a run directory with the code of `tunesmith run`. Stock TRL trains the same model
with GRPOTrainer. The model is random, so the program forces the completion lengths.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.grpo_task import (
    ALPHA,
    GROUP,
    RANK,
    RATE,
    SEED,
    Task,
    base_model,
    even_share,
    stock_model,
    text,
    tokenizer,
)
from benchmarks.sft_side import RECOMPUTE, Clock, most_memory, watch_memory

Untyped = Any  # Any: transformers, PEFT and TRL are not typed

Prepare = Callable[[Untyped, Untyped], Untyped]


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--side", choices=["ours", "stock", "stock-autocast"], required=True)
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments.add_argument("--tuning", choices=["lora", "full"], default="lora")
    arguments.add_argument("--prompt-tokens", type=int, default=70)
    arguments.add_argument("--new-tokens", type=int, default=128)
    arguments.add_argument("--ragged", action="store_true")
    arguments.add_argument("--steps", type=int, default=4, help="steps after the warm-up")
    arguments.add_argument("--warm-up", type=int, default=1)
    arguments.add_argument("--profile", choices=["python", "torch"])
    return arguments


class Meter(Clock):
    """CPU-seconds of each step and its phases, and peak memory in MiB."""

    def __init__(self, trainer: Untyped) -> None:
        super().__init__()
        self.phases: list[dict[str, float]] = []
        self.peak = 0.0
        self.sync_seconds: list[float] = []
        self.callback_cpu_seconds: list[float] = []
        """CPU-seconds of the callbacks in each step (see ForcedLengths). Only our trainer has
        callbacks."""
        self._spent: dict[str, float] = {}
        self.time(trainer, "_generate_and_score_completions", "rollout")
        self.time(trainer, "_generate_single_turn", "generate")
        self.time(trainer, "compute_loss", "forward")
        self.time(trainer.accelerator, "backward", "backward")
        trainer.add_callback(self)
        trainer.remove_callback(transformers.PrinterCallback)

    def time(self, owner: Untyped, name: str, phase: str) -> None:
        method: Callable[..., Untyped] = getattr(owner, name)

        def timed(*args: Untyped, **kwargs: Untyped) -> Untyped:
            start = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                spent = time.process_time() - start
                self._spent[phase] = self._spent.get(phase, 0.0) + spent

        setattr(owner, name, timed)

    def on_step_end(self, *args: Untyped, **kwargs: Untyped) -> None:
        super().on_step_end(*args, **kwargs)
        spent, self._spent = self._spent, {}
        generate, rollout = spent["generate"], spent.pop("rollout")
        spent["score"] = rollout - generate
        spent["other"] = self.cpu[-1] - rollout - spent["forward"] - spent["backward"]
        self.phases.append(spent)

    def on_train_end(self, *_: Untyped, **__: Untyped) -> None:
        self.peak = most_memory()


class ForcedLengths:
    """Our engine with forced completion lengths and without stop tokens."""

    def __init__(self, engine: Untyped, task: Task) -> None:
        self._engine, self._task, self._step = engine, task, 0
        self.sync_seconds: list[float] = []
        """Wall-clock seconds of each weight sync (loading the newest weights into the engine)."""
        self.callback_cpu_seconds: list[float] = []
        """CPU-seconds of each call of the trainer's callback for finished completions (decode,
        grade, store)."""

    def __getattr__(self, name: str) -> Untyped:
        return getattr(self._engine, name)  # all else is the engine's

    def generate(self, requests: Sequence[Untyped], *args: Untyped) -> Untyped:
        lengths = self._task.lengths(self._step)
        self._step += 1
        pairs = zip(requests, lengths, strict=True)
        forced = [
            replace(request, max_tokens=n, stop_token_ids=frozenset()) for request, n in pairs
        ]
        completions = self._engine.generate(forced, *args)
        figures = self._engine.figures
        self.sync_seconds.append(figures.sync.wall_seconds)
        self.callback_cpu_seconds.append(figures.callback.cpu_seconds)
        return completions


def ours(task: Task, folder: Path) -> tuple[Meter, float]:
    """Train with our trainer. Return the trainer's `Meter`, and the memory before training in
    MiB."""
    prepared_runs: list[tuple[Meter, float]] = []

    def prepared(prepare: Prepare, context: Untyped, loaded: Untyped) -> Untyped:
        idle = watch_memory()  # measured before our kernels load, so that their memory counts
        ready = prepare(context, loaded)
        meter = Meter(ready.trainer)
        engine = ready.trainer.runner.engine
        meter.sync_seconds = engine.sync_seconds
        meter.callback_cpu_seconds = engine.callback_cpu_seconds
        meter.time(engine, "generate", "engine")
        meter.time(ready.trainer, "scores", "log_probs")
        prepared_runs.append((meter, idle))
        return ready

    run_ours(task, folder, prepared)
    return prepared_runs[0]


def run_ours(
    task: Task, folder: Path, prepared: Callable[[Prepare, Untyped, Untyped], Untyped]
) -> None:
    """Train with the code of `tunesmith run`. `prepared` is called in place of the trainer's
    `prepare_reinforcement`. The first argument of `prepared` is a function that calls the original
    `prepare_reinforcement` and then forces the completion lengths. Raises RuntimeError if the run
    fails."""
    from tunesmith_worker.rundir.process import keep_freed_memory
    from tunesmith_worker.trainer import assemble_grpo as reinforcement
    from tunesmith_worker.trainer import run

    keep_freed_memory()
    root = run_directory(task, folder)
    original = reinforcement.prepare_reinforcement

    def prepare(context: Untyped, loaded: Untyped) -> Untyped:
        ready = original(context, loaded)
        rollouts = ready.trainer.runner
        rollouts.engine = ForcedLengths(rollouts.engine, task)
        return ready

    reinforcement.prepare_reinforcement = partial(prepared, prepare)
    try:
        if run.main(root, rewards=[f"{inspect.getsourcefile(even_share)}:{even_share.__name__}"]):
            raise RuntimeError((root / "result.json").read_text())
    finally:
        reinforcement.prepare_reinforcement = original


def run_directory(task: Task, folder: Path) -> Path:
    from tunesmith_schema import GRPORecipe, LoraRecipe, Recipe, RunSpec

    base_model(task).save_pretrained(folder / "model")
    tokenizer(task.vocabulary).save_pretrained(folder / "model")
    root = folder / "run"
    (root / "data").mkdir(parents=True)
    rows = "".join(json.dumps({"prompt": text(ids)}) + "\n" for ids in task.prompts())
    (root / "data/train.jsonl").write_text(rows)
    half = "bf16" if task.tuning == "lora" else "bf16_split_master"
    recipe = Recipe(
        tuning=task.tuning,
        lora=LoraRecipe(r=RANK, lora_alpha=ALPHA) if task.tuning == "lora" else None,
        precision="fp32" if task.dtype == "float32" else half,
        learning_rate=RATE,
        lr_scheduler_type="linear",
        max_steps=task.steps,
        save_steps=task.steps,
        gradient_checkpointing=False,
        grpo=GRPORecipe(
            num_generations=GROUP,
            prompts_per_step=task.prompts_per_step,
            max_completion_length=task.new_tokens,
        ),
    )
    spec = RunSpec(
        job_id="benchmark",
        attempt=1,
        model="random",
        model_path=str(folder / "model"),
        training_file="data/train.jsonl",
        validation_file=None,
        seed=SEED,
        method="reinforcement",
        grader=None,
        recipe=recipe,
    )
    (root / "spec.json").write_text(spec.model_dump_json())
    return root


class LengthsByEnd(transformers.LogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Force the end token at the length of each completion. Changes `scores` in place."""

    def __init__(self, prompt: int, lengths: list[int], ends: list[int]) -> None:
        self._prompt, self._ends = prompt, ends
        self._rows: dict[int, list[int]] = {}
        """Row indices, keyed by completion length."""
        for row, length in enumerate(lengths):
            self._rows.setdefault(length, []).append(row)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for end in self._ends:
            scores[:, end].fill_(-math.inf)
        for row in self._rows.get(input_ids.shape[1] - self._prompt + 1, []):
            scores[row].fill_(-math.inf)
            scores[row, self._ends[0]].fill_(0.0)
        return scores


def stock_trainer(task: Task, model: Untyped, folder: Path) -> Untyped:
    prompts = [{"prompt": text(ids)} for ids in task.prompts()]
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=even_share,
        args=trl.GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=task.completions,
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            num_generations=GROUP,
            max_completion_length=task.new_tokens,
            max_steps=task.steps,
            **{RECOMPUTE: False},
            learning_rate=RATE,
            lr_scheduler_type="linear",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=task.autocast,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            seed=SEED,
        ),
        train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=tokenizer(task.vocabulary),
    )


def stock(task: Task, folder: Path) -> tuple[Meter, float]:
    model = stock_model(task)
    idle = watch_memory()
    trainer = stock_trainer(task, model, folder)
    generate, steps = model.generate, iter(range(task.steps))

    def forced(**kwargs: Untyped) -> Untyped:
        prompt = kwargs["input_ids"].shape[1]
        lengths = LengthsByEnd(prompt, task.lengths(next(steps)), trainer.eos_token_ids)
        return generate(**kwargs, logits_processor=transformers.LogitsProcessorList([lengths]))

    model.generate = forced
    meter = Meter(trainer)
    trainer.train()
    return meter, idle


def task_of(options: argparse.Namespace) -> Task:
    return Task(
        side=options.side,
        dtype=options.dtype,
        tuning=options.tuning,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        ragged=options.ragged,
        steps=options.warm_up + options.steps,
    )


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    task = task_of(options)
    with tempfile.TemporaryDirectory() as folder:
        make = ours if options.side == "ours" else stock
        meter, idle = _profiled(options.profile, lambda: make(task, Path(folder)))
    skip = options.warm_up
    tokens = sum(sum(task.lengths(step)) for step in range(skip, task.steps))
    phases = {
        name: round(sum(spent[name] for spent in meter.phases[skip:]) / options.steps, 4)
        for name in meter.phases[-1]
    }
    step = sum(meter.cpu[skip:]) / options.steps
    beside = None
    if options.side == "ours":
        callbacks = sum(meter.callback_cpu_seconds[skip:]) / options.steps
        parts = ("engine", "log_probs", "backward")
        beside = round((step - sum(phases[part] for part in parts) + callbacks) / step, 5)
    print(
        json.dumps(
            {
                "side": options.side,
                "tuning": options.tuning,
                "step_cpu_seconds": step,
                "beside_share": beside,
                "step_cpu_seconds_all": [round(seconds, 3) for seconds in meter.cpu[skip:]],
                "warm_up_cpu_seconds": [round(seconds, 3) for seconds in meter.cpu[:skip]],
                "phases": phases,
                "generated_tokens": tokens,
                "tokens_per_cpu_second": tokens / sum(meter.cpu[skip:]),
                "generated_per_cpu_second": tokens / options.steps / phases["generate"],
                "idle_mib": idle,
                "peak_above_idle_mib": meter.peak - idle,
                "torch": torch.__version__,
            }
        )
    )


def _profiled(how: str | None, run: Callable[[], Untyped]) -> Untyped:
    if how is None:
        return run()
    if how == "torch":
        with torch.profiler.profile() as seen:
            result = run()
        sys.stderr.write(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=40))
        return result
    import cProfile
    import pstats

    with cProfile.Profile(time.process_time) as calls:
        result = run()
    pstats.Stats(calls, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return result


if __name__ == "__main__":
    main()
