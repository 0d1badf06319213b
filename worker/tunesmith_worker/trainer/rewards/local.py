"""Local reward functions for `tunesmith run RUN_DIR --reward FILE.py:NAME`. The functions have
TRL's signature:

    def f(prompts, completions, completion_ids, *, trainer_state, log_extra, log_metric, **columns)
        -> list[float | None]

A reward function may be async. `prompts` and `completions` are lists of messages if the rows are
conversations, else texts. Every other column of the rows is passed as a keyword argument, whose
value is a list.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError

from .protocol import CompletionText, Prompt

_SIGNATURE_HINT = (
    "A reward function is called with prompts, completions, completion_ids, trainer_state, "
    "log_extra, log_metric and one list for each column of the rows. Add **kwargs to its signature."
)
_NOT_COLUMNS = ("messages", "prompt", "completion", "completion_ids")


@dataclass(frozen=True, kw_only=True)
class LocalReward:
    """A reward function and its weight."""

    name: str
    function: Callable[..., Any]  # Any: the user's; its result is checked
    weight: float = 1.0

    @classmethod
    def load(cls, text: str) -> LocalReward:
        """Load the reward function `FILE.py:NAME[=WEIGHT]`. Raises RunError if `text` is invalid or
        the file has no such function."""
        place, equals, number = text.partition("=")
        path, colon, name = place.rpartition(":")
        if not colon or not path or not name.isidentifier():
            raise _invalid(text, "must be FILE.py:NAME or FILE.py:NAME=WEIGHT")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise _invalid(text, f"the weight '{number}' is not a finite number")
        module = _module(Path(path), text)
        function = getattr(module, name, None)
        if function is None:
            names = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
            raise _invalid(text, f"{path} has no '{name}'; it has {', '.join(names) or 'nothing'}")
        if not callable(function):
            raise _invalid(text, f"{name} is not a function but {type(function).__name__}")
        return cls(name=name, function=function, weight=weight)

    @property
    def is_async(self) -> bool:
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def call(self, arguments: Mapping[str, object]) -> Any:  # Any: the user's result
        """Call the reward function and return its result. Raises RunError if the function
        raises."""
        try:
            return self.function(**arguments)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise self.failed(error) from error

    async def wait(self, arguments: Mapping[str, object]) -> Any:  # Any: the user's result
        try:
            result: Awaitable[Any] = self.function(**arguments)
            return await result
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> RunError:
        traceback.print_exception(error)  # the traceback shows errors inside libraries
        trace, where, file = error.__traceback__, "", self._file()
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                where = f" in line {trace.tb_lineno}"
            trace = trace.tb_next
        return RunError(
            ErrorCode.GRADER_FAILED,
            f"Reward function '{self.name}' raised {type(error).__name__}{where}: {error}",
            category=ErrorCategory.GRADER,
            hint=_SIGNATURE_HINT if isinstance(error, TypeError) and not where else None,
        )

    def _file(self) -> str | None:
        """Return the file that defines the function; None if the function is not written in
        Python."""
        for function in (inspect.unwrap(self.function), type(self.function).__call__):
            if (code := getattr(function, "__code__", None)) is not None:
                return str(code.co_filename)
        return None

    def checked(self, result: Any, count: int) -> list[float | None]:  # Any: the user's result
        """Return the function's rewards: a number or None for each completion. NaN becomes None.
        Raises RunError for an invalid result.
        """
        try:
            values = list(result)
        except TypeError:
            raise self._wrong(f"returned {type(result).__name__}, not a list") from None
        if len(values) != count:
            raise self._wrong(
                f"returned {len(values)} rewards, but {count} were expected: one per completion"
            )
        return [self._number(place, value) for place, value in enumerate(values)]

    def _number(self, place: int, value: Any) -> float | None:  # Any: the user's result
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = math.inf
        if math.isinf(number) or isinstance(value, str):
            raise self._wrong(f"returned {value!r:.80} for completion {place}, not a finite number")
        return None if math.isnan(number) else number

    def _wrong(self, message: str) -> RunError:
        return RunError(
            ErrorCode.GRADER_FAILED,
            f"Reward function '{self.name}' {message}",
            category=ErrorCategory.GRADER,
        )


def load_rewards(texts: Sequence[str], method: str) -> tuple[LocalReward, ...]:
    """Load the functions of all `--reward` options. Raises RunError if a function cannot be
    loaded."""
    if texts and method != "reinforcement":
        raise _invalid(texts[0], f"the run's method is {method}, which has no rewards")
    return tuple(LocalReward.load(text) for text in texts)


def trl_arguments(
    prompts: Sequence[Prompt],
    samples: Sequence[CompletionText],
    completion_ids: Sequence[Sequence[int]],
) -> dict[str, object]:
    """Return the arguments that TRL passes to reward functions.

    The caller adds `trainer_state`, `log_extra` and `log_metric`."""
    columns = list(dict.fromkeys(name for prompt in prompts for name in prompt.item))
    asked = [_prompt_value(prompt) for prompt in prompts]
    answers = [
        [{"role": "assistant", "content": sample.text}] if isinstance(prompt, list) else sample.text
        for prompt, sample in zip(asked, samples, strict=True)
    ]
    return {
        **{
            name: [prompt.item.get(name) for prompt in prompts]
            for name in columns
            if name not in _NOT_COLUMNS
        },
        "prompts": asked,
        "completions": answers,
        "completion_ids": [list(ids) for ids in completion_ids],
    }


def _prompt_value(prompt: Prompt) -> object:
    for name in ("messages", "prompt"):  # same order as in the data reader
        if isinstance(value := prompt.item.get(name), str | list):
            return value
    return prompt.text


def _module(path: Path, text: str) -> ModuleType:
    path = path.expanduser().resolve()
    name = f"reward_file_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    if not path.is_file():
        raise _invalid(text, f"file not found: {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _invalid(text, f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.parent))  # allows imports of files in the same folder
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        del sys.modules[name]
        raise _invalid(text, f"{path.name} raised {type(error).__name__}: {error}") from error
    return module


def _invalid(text: str, message: str) -> RunError:
    return RunError(
        ErrorCode.GRADER_INVALID,
        f"--reward {text}: {message}",
        param="reward",
    )
