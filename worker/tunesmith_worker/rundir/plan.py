"""Values chosen for settings left at "auto", with reasons, and the plans built from these
values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from pydantic import JsonValue

from tunesmith_schema import Auto, Choice, Plan, Precision

Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]
T = TypeVar("T")


class Choices:
    """Values chosen in one run for settings left at "auto". Choices of an earlier attempt are
    reused from plan.json."""

    def __init__(
        self, earlier: Plan | None = None, on_choice: Callable[[Choice], None] = lambda choice: None
    ) -> None:
        """`on_choice` is called with every choice that is added, reused or replaced."""
        self._earlier = {choice.name: choice for choice in earlier.choices} if earlier else {}
        self._on_choice = on_choice
        self.made: list[Choice] = []
        """Choices of this run. The run report refers to this list, so do not assign a new list."""

    def resolve(self, name: str, setting: T | Auto, value: T, reason: str) -> T:
        """Return `setting`; for "auto", return the earlier choice or, if none exists, `value`.

        Records a choice if `setting` is "auto"."""
        if setting != "auto":
            return setting
        if (earlier := self.earlier(name)) is not None:
            self.reuse(earlier)
            return cast(T, earlier.value)
        choice = Choice(name=name, value=cast(JsonValue, value), reason=reason)
        self.add(choice)
        return cast(T, choice.value)

    def earlier(self, name: str) -> Choice | None:
        """Return the choice `name` from plan.json; None if plan.json lacks the choice."""
        return self._earlier.get(name)

    def add(self, choice: Choice) -> None:
        """Record a new choice."""
        self.made.append(choice)
        self._on_choice(choice)

    def reuse(self, choice: Choice) -> None:
        """Record a choice of an earlier attempt, with the same value. The event of a reused choice
        says that the choice is from plan.json."""
        self.made.append(choice)
        reason = f"reused from plan.json: {choice.reason}"
        self._on_choice(choice.model_copy(update={"reason": reason}))

    def replace(self, choice: Choice) -> None:
        """Replace the recorded choice that has the same name."""
        self.made[:] = [choice if made.name == choice.name else made for made in self.made]
        self._on_choice(choice)


@dataclass(frozen=True, kw_only=True)
class Device:
    """Properties of the training device that the plans depend on."""

    name: str
    """Display name: `cpu` or the GPU's name."""
    is_gpu: bool
    has_bf16: bool


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    precision: Precision


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    max_seq_length: int
    overlong: Literal["drop", "truncate", "error"]
    assistant_only_loss: bool
    packing: bool
    context: int | None = None
    """Maximum number of positions of the model; None if the model's configuration has no
    maximum."""

    @property
    def fits_longer_rows(self) -> bool:
        """True if the model's context allows a larger max_seq_length."""
        return self.context is None or self.max_seq_length < self.context


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    learning_rate: float
    lr_scheduler_type: Scheduler
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    total_steps: int
    logging_steps: int
    eval_steps: int | None
    """Steps between evaluations; None without a validation file."""
    save_steps: int | None
    """Steps between checkpoints; None: no checkpoint before the end of training."""

    @property
    def rows_per_step(self) -> int:
        """Number of examples per optimiser step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps
