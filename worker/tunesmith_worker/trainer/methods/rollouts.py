"""The completions of a step: drawn by the engine, graded beside that, and kept.

What is drawn depends on the run's seed, the step and the weights alone: another attempt at a step
draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from pydantic import JsonValue

from tunesmith_schema import ErrorCategory, ErrorCode, PhaseName
from tunesmith_worker.engine.rollout import (
    Completion,
    NativeEngine,
    NotFinite,
    Request,
    RolloutDoesNotFit,
    SamplingParams,
    UnsupportedModel,
)
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory
from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.data.prompts import Prompts
from tunesmith_worker.trainer.report.rollouts import RewardCounts, RoundFigures
from tunesmith_worker.trainer.rewards import ErrorsTold, Graded, Grading, Round, Sample

from .grpo_metrics import leveled
from .kept_rollouts import KeptRollouts

Untyped = Any  # Any: transformers is not typed


@dataclass(eq=False, kw_only=True)
class Drawn:
    """The completions of one occasion, filled in as they come."""

    prompts: list[PromptRow]
    """One for each completion: a group's stand together."""
    kind: str
    """`train` or `valid`."""
    step: int
    """Optimiser steps done before."""
    round: Round
    completions: list[Completion] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """By place."""
    graded: list[Graded] = field(default_factory=list)


class Rollouts:
    def __init__(
        self,
        engine: NativeEngine,
        tokenizer: Untyped,
        prompts: Prompts,
        grading: Grading,
        plan: GRPOPlan,
        *,
        weights: Literal["merged", "in_place"],
        stop_token_ids: frozenset[int],
        seed: int,
        clock: WallClock,
        kept: KeptRollouts,
        write: Callable[[int, list[Mapping[str, JsonValue]]], None],
        tell: Callable[[RoundFigures], None],
        say: Callable[[str], None],
        warn: Callable[[str], None],
        stop_requested: Callable[[], bool],
    ) -> None:
        """`weights`: what the engine draws from. `write` keeps the samples of a step, numbered
        from 1; `tell` takes the figures of what was drawn for it, `say` and
        `warn` what a user should know.
        `stop_requested`: whether to leave off drawing for a step."""
        self.engine, self.prompts, self.grading = engine, prompts, grading
        self.stop_token_ids, self.weights = stop_token_ids, weights
        self.sampling = SamplingParams(
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            min_p=plan.min_p or 0.0,
        )
        self._tokenizer, self._plan, self._seed, self.clock = tokenizer, plan, seed, clock
        self._kept, self._write, self.tell = kept, write, tell
        self._say, self._warn = say, warn
        self._stop_requested = stop_requested
        self._errors = {"train": ErrorsTold("Step"), "valid": ErrorsTold("The evaluation of step")}
        self.spreads = 0
        """Groups of the run whose rewards differ: there was something to learn from."""
        self._told_of_slow_steps = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        self.grading.close()

    def requests(self, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        """What the engine is asked for at the first step, were these its prompts."""
        return [self._request(ids, ("train", 0, place)) for place, ids in enumerate(prompts)]

    def draw(self, prompts: Sequence[PromptRow], kind: str, state: Untyped) -> Drawn:
        """Nothing yet: `generate` does it. `prompts`: one for each completion; `state`: the
        trainer's."""
        return Drawn(
            prompts=list(prompts),
            kind=kind,
            step=state.global_step,
            round=self.grading.begin(prompts, state, trains=kind == "train"),
        )

    def generate(self, drawn: Drawn, *, resumed: bool = False) -> None:
        """Every completion of it; `resumed`: the weights are those that an earlier attempt may
        have drawn some of them with."""
        training = drawn.kind == "train"
        phase = PhaseName.GENERATE if training else PhaseName.EVALUATION
        with self.clock.during(phase):
            requests = [
                self._request(row.prompt_ids, (drawn.kind, drawn.step, place))
                for place, row in enumerate(drawn.prompts)
            ]
            done = {}
            if training:
                done = self._kept.begin(
                    drawn.step,
                    resumed=resumed,
                    count=len(requests),
                    partly=self.engine.batch_invariant,
                )
            if done:
                self._say(
                    f"Step {drawn.step + 1} has {len(done)} of its {len(requests)} completions "
                    "from an earlier attempt."
                )
            for place, completion in done.items():
                self._finished(drawn, place, completion)
            missing = [place for place in range(len(requests)) if place not in done]

            def finished(number: int, completion: Completion) -> None:
                place = missing[number]
                self._finished(drawn, place, completion)
                if training:
                    self._kept.add(place, completion)

            # An evaluation is part of the step before it, which a resume point takes as done.
            self.engine.interrupted = self._stop_requested if training else lambda: False
            with rollout_failures():
                found = self.engine.generate([requests[place] for place in missing], finished)
            self._warn_of_slow_steps(self.engine.figures.recording_error)
            done |= dict(zip(missing, found, strict=True))
            drawn.completions = [done[place] for place in range(len(requests))]
        if missing and training:
            self.clock.move(
                PhaseName.GENERATE, PhaseName.SYNC, self.engine.figures.sync.wall_seconds
            )

    def grade(self, drawn: Drawn) -> list[list[float]]:
        """[completions, reward columns]; NaN where a completion has none."""
        training = drawn.kind == "train"
        with self.clock.during(PhaseName.GRADE if training else PhaseName.EVALUATION):
            drawn.graded = drawn.round.finish()
        step = drawn.step + training  # an evaluation is of the step before it
        for sentence in self._errors[drawn.kind].sentences(step, drawn.graded):
            self._warn(sentence)
        return [
            [float("nan") if one is None else one for one in graded.rewards]
            for graded in drawn.graded
        ]

    def _warn_of_slow_steps(self, reason: str) -> None:
        if reason and not self._told_of_slow_steps:
            self._told_of_slow_steps = True
            first, *_ = reason.splitlines()
            self._warn(f"Decode steps are not recorded as CUDA graphs, and take longer: {first}")

    def level(self, drawn: Drawn, advantages: torch.Tensor) -> RewardCounts:
        """See `leveled`; counts the run's spreads on."""
        counts = leveled(drawn.graded, advantages, self._plan.num_generations)
        self.spreads += counts.groups - counts.equal_groups
        return counts

    def keep(self, drawn: Drawn, advantages: Sequence[float]) -> None:
        """As the samples of the step that comes."""
        if drawn.kind == "train":
            samples = [self._sample(drawn, *pair) for pair in enumerate(advantages)]
            self._write(drawn.step + 1, samples)

    def scores(self, drawn: Drawn) -> dict[str, list[float]]:
        """Of each grader and reward function by name, those that there are."""
        found: dict[str, list[float]] = {}
        for graded in drawn.graded:
            for name, score in graded.scores.items():
                if score is not None:
                    found.setdefault(name, []).append(score)
        return found

    def _request(self, prompt_ids: tuple[int, ...], occasion: tuple[str, int, int]) -> Request:
        return Request(
            prompt_ids=prompt_ids,
            max_tokens=self._plan.max_completion_length,
            seed=seed_of(self._seed, *occasion),
            sampling=self.sampling,
            stop_token_ids=self.stop_token_ids,
        )

    def _finished(self, drawn: Drawn, place: int, completion: Completion) -> None:
        text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        drawn.texts[place] = text
        sample = Sample(
            text=text,
            tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason.value,
        )
        drawn.round.add(place, sample, completion.token_ids)

    def _sample(self, drawn: Drawn, place: int, advantage: float) -> Mapping[str, JsonValue]:
        prompt, done = drawn.prompts[place], drawn.completions[place]
        graded = drawn.graded[place]
        given = [
            weight * reward
            for weight, reward in zip(self.grading.weights, graded.rewards, strict=True)
            if reward is not None
        ]
        return {
            "group": place // self._plan.num_generations,
            "row": prompt.number,
            "prompt": prompt.text,
            "completion": drawn.texts[place],
            "reward": sum(given) if given else None,
            "scores": dict(graded.scores),
            "advantage": advantage,
            "prompt_tokens": len(prompt.prompt_ids),
            "completion_tokens": len(done.token_ids),
            "finish_reason": done.finish_reason.value,
        }


def seed_of(seed: int, kind: str, step: int, place: int) -> int:
    """64 bits of its own for each completion of a run."""
    text = f"{seed}/{kind}/{step}/{place}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


_SMALLER = (
    "Lower recipe.grpo.max_completion_length or recipe.max_seq_length, or use a smaller model."
)


@contextmanager
def rollout_failures() -> Iterator[None]:
    """Around what the engine does: its errors become a RunError, others pass."""
    try:
        yield
    except UnsupportedModel as error:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"The rollout engine cannot generate with this model: {error}.",
            hint="Reinforcement needs a family listed in docs/explanation/kernels.md; supervised "
            "tuning trains other families too.",
            param="model",
        ) from error
    except NotFinite as error:
        raise RunError(
            ErrorCode.LOSS_NONFINITE,
            f"Nothing can be generated: {error}",
            hint="Lower recipe.learning_rate, by a factor of 10 to begin with; if this is the "
            "first step, the base model itself is damaged.",
            param="recipe.learning_rate",
        ) from error
    except RolloutDoesNotFit as error:
        raise _no_memory(f"Out of memory before the first rollout: {error}.") from error
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).partition("\n")[0]
        raise _no_memory(f"Out of memory while generating: {first_line}") from error


def _no_memory(message: str) -> RunError:
    return RunError(
        ErrorCode.OUT_OF_MEMORY,
        message,
        category=ErrorCategory.OUT_OF_MEMORY,
        hint=_SMALLER,
        param="recipe.grpo.max_completion_length",
    )
