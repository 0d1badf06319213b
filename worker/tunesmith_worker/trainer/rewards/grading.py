"""Grading of completions while the engine generates the rest of the step.

The job's grader scores a completion in a thread as soon as this completion ends. Local reward
functions score all completions at the end of the step.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean
from types import TracebackType
from typing import Self

from tunesmith_schema import ErrorCategory, ErrorCode, Grader, MultiGrader
from tunesmith_schema.formulas import parse_formula, used_names
from tunesmith_worker.rundir.errors import RunError

from .formula import evaluate
from .local import LocalReward, trl_arguments
from .protocol import CompletionText, Graded, GraderError, NoSuchOutput, Prompt
from .scorers import Scorer, scorer
from .templates import GraderInput

FEW = 3
"""Number of consecutive steps without any reward after which a run fails.

A single faulty row does not end a run.
"""


class SpecGrader:
    """The job's grader: a single grader, or several single graders and the formula that combines
    their scores."""

    def __init__(self, grader: Grader) -> None:
        """Raises RunError for an invalid grader."""
        self.name = grader.name
        graders = grader.by_name if isinstance(grader, MultiGrader) else {grader.name: grader}
        self._scorers: dict[str, Scorer] = {
            name: scorer(single) for name, single in graders.items()
        }
        self._formula = (
            parse_formula(grader.calculate_output, graders)
            if isinstance(grader, MultiGrader)
            else None
        )
        self._used = frozenset(graders) if self._formula is None else used_names(self._formula)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the single graders."""
        return tuple(self._scorers)

    def grade(self, completion: GraderInput) -> Graded:
        """Return the reward and the scores of a completion. Errors are part of the result and never
        raised."""
        scores: dict[str, float | None] = {}
        errors: list[str] = []
        for name, score in self._scorers.items():
            try:
                scores[name] = score(completion)
            except NoSuchOutput:
                scores[name] = 0.0
            except Exception as error:  # a grader's error on one completion must not end the run
                scores[name] = None
                errors.append(_format_error(name, error))
        return Graded(rewards=(self._reward(scores, errors),), scores=scores, errors=tuple(errors))

    def _reward(self, scores: Mapping[str, float | None], errors: list[str]) -> float | None:
        known = {name: score for name, score in scores.items() if score is not None}
        if not self._used <= known.keys():
            return None
        if self._formula is None:
            return known[self.name]
        try:
            return evaluate(self._formula, known)
        except GraderError as error:
            errors.append(_format_error(self.name, error))
            return None


class Grading:
    """The graders and reward functions of a run. Close the object after use."""

    def __init__(
        self, grader: Grader | None, local: Sequence[LocalReward] = (), *, steps: int = FEW
    ) -> None:
        """`steps`: number of the run's steps. Raises RunError for an invalid grader."""
        self._spec = SpecGrader(grader) if grader is not None else None
        self._local = tuple(local)
        own = (self._spec.name,) if self._spec else ()
        self.columns: tuple[str, ...] = (*own, *(reward.name for reward in self._local))
        """Names of the rewards: first the job's grader, then the local reward functions."""
        self.weights: tuple[float, ...] = (*(1.0 for _ in own), *(r.weight for r in self._local))
        """Weight of each reward."""
        names = [*{*own, *(self._spec.names if self._spec else ())}, *(r.name for r in self._local)]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if not self.columns or twice:
            raise RunError(
                ErrorCode.GRADER_INVALID,
                f"Two rewards have the name '{twice[0]}': give each its own name"
                if twice
                else "The run has no reward: add a grader, or --reward FILE.py:NAME",
            )
        self.ungraded_steps = 0
        """Number of consecutive steps in which no completion had a reward."""
        self.patience = min(FEW, steps)
        """Number of consecutive ungraded steps after which the run fails."""
        # One thread: graders are Python code, so more threads would only wait for the GIL.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grading")
        self._loop = asyncio.Runner()

    @property
    def grader(self) -> str | None:
        """Name of the job's grader; None without a grader."""
        return None if self._spec is None else self._spec.name

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the local reward functions."""
        return tuple(reward.name for reward in self._local)

    def begin(
        self, prompts: Sequence[Prompt], trainer_state: object = None, *, trains: bool = True
    ) -> Round:
        """Begin a step. `prompts`: one prompt per completion.

        `trainer_state`: transformers' TrainerState, for local functions. `trains`: False for an
        evaluation; missing rewards in an evaluation do not end the run.
        """
        return Round(self, prompts, trainer_state, trains=trains)

    def grade_again(self, prompt: Prompt, sample: CompletionText) -> Graded | None:
        """Return a second grade of a completion by the job's grader; None if the run has no grader.

        The second grade is not used for training.
        """
        return None if self._spec is None else self._spec.grade(GraderInput(prompt, sample))

    def close(self) -> None:
        """Cancel pending grading."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _grade_soon(self, completion: GraderInput) -> Future[Graded] | None:
        return self._thread.submit(self._spec.grade, completion) if self._spec else None

    def _call_local(self, arguments: Mapping[str, object], count: int) -> list[list[float | None]]:
        results = {r.name: r.call(arguments) for r in self._local if not r.is_async}
        waiting = [reward for reward in self._local if reward.is_async]

        async def together() -> dict[str, object]:
            values = await asyncio.gather(*(reward.wait(arguments) for reward in waiting))
            return {reward.name: value for reward, value in zip(waiting, values, strict=True)}

        if waiting:
            results |= self._loop.run(together())
        return [reward.checked(results[reward.name], count) for reward in self._local]


class Round:
    """The completions of one step; each completion is graded when it is added."""

    def __init__(
        self,
        grading: Grading,
        prompts: Sequence[Prompt],
        trainer_state: object,
        *,
        trains: bool = True,
    ) -> None:
        self._grading, self._trains = grading, trains
        self._prompts = prompts
        self._trainer_state = trainer_state
        self._samples: list[CompletionText | None] = [None] * len(prompts)
        self._ids: list[Sequence[int]] = [()] * len(prompts)
        self._coming: list[Future[Graded] | None] = [None] * len(prompts)
        self.extras: dict[str, list[object]] = defaultdict(list)
        """Columns that local functions pass to `log_extra`, with one value per completion."""
        self.metrics: dict[str, float] = {}
        """Mean of each metric that local functions pass to `log_metric`."""

    def add(self, place: int, sample: CompletionText, completion_ids: Sequence[int]) -> None:
        """Add the completion for the prompt at index `place`, without waiting for its grade.

        Completions may be added in any order."""
        assert self._samples[place] is None, f"prompt {place} already has a completion"
        self._samples[place] = sample
        self._ids[place] = completion_ids
        completion = GraderInput(self._prompts[place], sample)
        self._coming[place] = self._grading._grade_soon(completion)

    def finish(self) -> list[Graded]:
        """Wait for the graders and return their results in the order of the prompts.

        Raises RunError if no completion had a reward for `patience` consecutive steps, or if a
        local function raised or returned an invalid value.
        """
        samples = [sample for sample in self._samples if sample is not None]
        assert len(samples) == len(self._prompts), "a completion is missing"
        nothing = Graded(rewards=(), scores={})
        graded = [future.result() if future else nothing for future in self._coming]
        if self._grading._local:
            graded = self._with_local(graded, samples)
        if self._trains and graded:
            self._count(graded)
        return graded

    def _with_local(self, graded: list[Graded], samples: list[CompletionText]) -> list[Graded]:
        logged: dict[str, list[float]] = defaultdict(list)
        arguments = {
            **trl_arguments(self._prompts, samples, self._ids),
            "trainer_state": self._trainer_state,
            "log_extra": lambda column, values: self.extras[column].extend(values),
            "log_metric": lambda name, value: logged[name].append(float(value)),
        }
        columns = self._grading._call_local(arguments, len(samples))
        self.metrics = {name: fmean(values) for name, values in logged.items()}
        names = [reward.name for reward in self._grading._local]
        return [
            Graded(
                rewards=(*result.rewards, *rewards),
                scores={**result.scores, **dict(zip(names, rewards, strict=True))},
                errors=result.errors,
            )
            for result, *rewards in zip(graded, *columns, strict=True)
        ]

    def _count(self, graded: Sequence[Graded]) -> None:
        grading = self._grading
        if any(result.is_graded for result in graded):
            grading.ungraded_steps = 0
            return
        grading.ungraded_steps += 1
        if grading.ungraded_steps < grading.patience:
            return
        prompt, sample = self._prompts[0], self._samples[0]
        reason = (
            graded[0].errors[0] if graded[0].errors else "the reward functions returned None or NaN"
        )
        at_fault = "grader" if grading._spec else "reward function"
        raise RunError(
            ErrorCode.GRADER_FAILED,
            f"No completion of {grading.patience} consecutive steps could be scored. Reason for "
            f"row {prompt.number}, completion {sample.text[:200] if sample else ''!r}: {reason}",
            category=ErrorCategory.GRADER,
            hint=f"Fix the {at_fault} or the rows that it reads, then start the job again.",
        )


def _format_error(name: str, error: Exception) -> str:
    text = str(error) if isinstance(error, GraderError) else f"{type(error).__name__}: {error}"
    return f"{name}: {text[:500]}"


class GradingWarnings:
    """Warnings about completions that cannot be scored. The number of warnings of each grader is
    limited."""

    def __init__(self, occasion: str) -> None:
        """`occasion`: text before the step number at the start of each message, such as "Step"."""
        self._occasion = occasion
        self._most: dict[str, int] = {}
        """For each grader: the number of unscored completions in its last warning."""

    def sentences(self, step: int, graded: Sequence[Graded]) -> list[str]:
        """Return one warning for each grader that has its first errors, or at least twice as many
        errors in this step as at its last warning. An error is a completion without a score."""
        by_grader: dict[str, list[str]] = {}
        for result in graded:
            for name, error in {text.partition(":")[0]: text for text in result.errors}.items():
                by_grader.setdefault(name, []).append(error)
        sentences = []
        for name, errors in by_grader.items():
            if len(errors) < 2 * self._most.get(name, 0):
                continue
            self._most[name] = len(errors)
            sentences.append(
                f"{self._occasion} {step}: {len(errors)} of {len(graded)} completions could not be "
                f"scored and are ignored. First reason: {errors[0]}"
            )
        return sentences
