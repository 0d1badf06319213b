"""Why completions cannot be generated, in words a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.rollout import NotFinite, RolloutDoesNotFit, UnsupportedModel
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory

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
