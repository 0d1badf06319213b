"""Callback between steps: appends metrics to the events and obeys stop requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_schema import ErrorCode, EventKind
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog, finite

Untyped = Any  # Any: transformers is not typed

METHOD_METRICS = frozenset(
    {
        *("updates_lost_fraction", "embedding_learning_rate", "frac_reward_zero_std", "kl"),
        *("entropy", "completion_length", "completion_length_max", "truncated_share"),
        *("clip_ratio", "rollout_gap", "ungraded_share", "importance_ratio"),
        *("importance_ratio_max", "importance_masked_share"),
    }
)
"""Step metrics that only some methods log."""
_SHOWN = {"reward": "reward", "loss": "train_loss"}
NONFINITE_LIMIT = 3
"""Number of consecutive logged steps with a non-finite loss after which the run fails."""


class RunCallback(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    def __init__(
        self,
        events: EventLog,
        control: StopControl,
        *,
        save_steps: int | None,
        trained_tokens: Callable[[], int],
        input_tokens: Callable[[], int],
        live: Callable[[], dict[str, float | None]],
        mark: Callable[[], None] = lambda: None,
    ) -> None:
        """`live`: function that returns additional step metrics.

        `mark`: function that records progress.
        """
        self._mark = mark
        self._events = events
        self._control = control
        self._save_steps = save_steps
        self._trained_tokens, self._live = trained_tokens, live
        self._all_tokens = input_tokens
        self._nonfinite = 0
        self._warned = False
        self._input_tokens = 0.0
        self.metrics: dict[str, float | None] = {}
        """The last value of each metric."""

    def state(self) -> dict[str, Untyped]:
        names = ("metrics", "_nonfinite", "_warned")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._since = self._step_ended = time.perf_counter()
        self._input_tokens = self._all_tokens()

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._step_ended = time.perf_counter()
        self._control.step_ended(state.global_step)
        last = state.global_step == state.max_steps
        if (last or self._control.end_requested) and args.eval_strategy != "no":
            control.should_evaluate = True  # evaluate the final weights
        if self.checkpoint_due(state.global_step):
            control.should_save = True
        if self._control.stop_requested and not last:
            control.should_training_stop = True  # ResumePoints then writes a resume point
        elif self._control.end_requested and not last:
            control.should_save = False  # the run ends here and saves its result
            control.should_training_stop = True
            self._append_stop_event(state)

    def on_prediction_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        self._mark()  # report progress during long evaluations

    def on_evaluate(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._exclude_time()

    def on_save(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._exclude_time()

    def on_log(
        self,
        args: Untyped,
        state: Untyped,
        control: Untyped,
        logs: dict[str, float] | None = None,
        **_: Untyped,
    ) -> None:
        logs = logs or {}
        if "eval_reward" in logs:
            reward = logs["eval_reward"]
            self._log_metrics(state, {"valid_reward": reward}, f"valid_reward={reward:.4f}")
        elif "eval_loss" in logs:
            values = {
                "valid_loss": logs["eval_loss"],
                "valid_mean_token_accuracy": logs.get("eval_mean_token_accuracy"),
            }
            self._log_metrics(state, values, f"valid_loss={logs['eval_loss']:.4f}")
        elif "loss" in logs:
            values = {
                "epoch": logs.get("epoch"),
                "train_loss": logs["loss"],
                "learning_rate": logs.get("learning_rate"),
                "grad_norm": logs.get("grad_norm"),
                "tokens_per_second": self._speed(logs["num_tokens"]),
                "trained_tokens": self._trained_tokens(),
                **self._live(),
            }
            if "mean_token_accuracy" in logs:
                values["train_mean_token_accuracy"] = logs["mean_token_accuracy"]
            known = {name: value for name, value in logs.items() if value is not None}
            values |= {name: known[name] for name in known if name in METHOD_METRICS}
            values |= {
                name: value
                for name, value in known.items()
                if name.startswith(("reward", "score_", "logged_"))
            }
            shown = "reward" if "reward" in known else "loss"
            self._log_metrics(state, values, f"{_SHOWN[shown]}={logs[shown]:.4f}")
            self._check_loss(state.global_step, logs["loss"])

    def checkpoint_due(self, step: int) -> bool:
        """Return True if a light checkpoint (weights only, for generation) is due at this step."""
        return self._save_steps is not None and step % self._save_steps == 0

    def checkpoint_metrics(self) -> dict[str, float | None]:
        """Return the last logged metrics.

        Validation reads the whole file, so the metrics `full_valid_*` equal the metrics
        `valid_*`."""
        names = ("train_loss", "train_mean_token_accuracy", "reward", "valid_reward")
        both = ("valid_loss", "valid_mean_token_accuracy")
        chosen = {name: self.metrics[name] for name in (*names, *both) if name in self.metrics}
        return chosen | {f"full_{name}": chosen[name] for name in both if name in chosen}

    def _log_metrics(self, state: Untyped, values: dict[str, float | None], summary: str) -> None:
        step, total = state.global_step, state.max_steps
        clean = {name: finite(value) for name, value in values.items()}
        self._warn_once(step, values, clean)
        self._events.append(
            EventKind.METRICS,
            f"Step {step}/{total}: {summary}",
            {"step": step, "total_steps": total, **clean},
        )
        self.metrics |= clean

    def _warn_once(
        self, step: int, values: dict[str, float | None], clean: dict[str, float | None]
    ) -> None:
        lost = [name for name, value in values.items() if value is not None and clean[name] is None]
        if lost and not self._warned:
            self._warned = True
            self._events.message(
                f"Step {step}: {lost[0]} is {values[lost[0]]}. Metrics that are not finite are "
                "shown as null.",
                level="warn",
                data={"step": step, "names": list(lost)},
            )

    def _check_loss(self, step: int, loss: float) -> None:
        self._nonfinite = self._nonfinite + 1 if finite(loss) is None else 0
        if self._nonfinite == NONFINITE_LIMIT:
            raise RunError(
                ErrorCode.LOSS_NONFINITE,
                f"The loss has been {loss} for {NONFINITE_LIMIT} logged steps, up to step {step}. "
                "The model no longer learns.",
                hint="Lower recipe.learning_rate, first by a factor of 10, and keep "
                "recipe.max_grad_norm at 1.",
                param="recipe.learning_rate",
            )

    def _speed(self, input_tokens: float) -> float:
        now = time.perf_counter()
        tokens, seconds = input_tokens - self._input_tokens, now - self._since
        self._since, self._input_tokens = now, input_tokens
        return round(tokens / seconds, 2)

    def _append_stop_event(self, state: Untyped) -> None:
        step, total = state.global_step, state.max_steps
        end = self._control.early_end
        self._events.message(
            f"Step {step}/{total}: stopped {end.text}; the trained weights are kept",
            data={"step": step, "total_steps": total, **end.data},
        )

    def exclude(self, seconds: float) -> None:
        """Exclude seconds of the current step from tokens_per_second."""
        self._since += seconds

    def _exclude_time(self) -> None:
        now = time.perf_counter()
        self._since += now - max(self._since, self._step_ended)
        self._step_ended = now
