"""What was left open and is settled: the choices with their reasons, and the plans they make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from pydantic import JsonValue

from tunesmith_schema import Auto, Choice, Plan, Precision

Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]
T = TypeVar("T")


class Choices:
    """Collects what was settled; choices of an earlier attempt (plan.json) are taken again."""

    def __init__(
        self, earlier: Plan | None = None, tell: Callable[[Choice], None] = lambda choice: None
    ) -> None:
        self._earlier = {choice.name: choice for choice in earlier.choices} if earlier else {}
        self._tell = tell
        self.made: list[Choice] = []

    def settle(self, name: str, given: T | Auto, value: T, reason: str) -> T:
        """`given`, unless it is "auto": then the earlier choice, else `value`, written down."""
        if given != "auto":
            return given
        if (earlier := self.earlier(name)) is not None:
            self.take_again(earlier)
            return cast(T, earlier.value)
        choice = Choice(name=name, value=cast(JsonValue, value), reason=reason)
        self.add(choice)
        return cast(T, choice.value)

    def earlier(self, name: str) -> Choice | None:
        return self._earlier.get(name)

    def add(self, choice: Choice) -> None:
        """What was found by measuring while training."""
        self.made.append(choice)
        self._tell(choice)

    def take_again(self, choice: Choice) -> None:
        """An earlier one: kept as it is, and told as what it is."""
        self.made.append(choice)
        told = f"as plan.json has it: {choice.reason}"
        self._tell(choice.model_copy(update={"reason": told}))

    def revise(self, choice: Choice) -> None:
        """What was settled turned out wrong: written down anew, in its place."""
        self.made = [choice if one.name == choice.name else one for one in self.made]
        self._tell(choice)


@dataclass(frozen=True, kw_only=True)
class Device:
    """What the plans need to know of the machine."""

    name: str
    """For people: `cpu` or the card's name."""
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
    """None: there is no validation file."""
    save_steps: int | None
    """None: no checkpoint before the end."""

    @property
    def rows_of_step(self) -> int:
        """Examples of an optimiser step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps
