"""Metrics of invented runs, step by step. The same seed gives the same values."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

Values = dict[str, float | None]


def supervised(steps: int, total: int, seed: int = 0) -> Iterator[tuple[int, Values]]:
    """Yield steps 1 to `steps` of a supervised run that would have `total` steps. Losses are in
    nats per token."""
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        done = step / total
        loss = 0.9 + 1.6 * math.exp(-6 * done) + rng.gauss(0, 0.05)
        values: Values = {
            "train_loss": round(loss, 4),
            "train_mean_token_accuracy": round(0.75 - 0.3 * math.exp(-6 * done), 4),
            "learning_rate": 2e-4 * min(step / (0.03 * total + 1), 1.0) * (1 - 0.9 * done),
            "grad_norm": round(abs(rng.gauss(1.1, 0.3)) + (9.0 if step % 97 == 0 else 0.0), 3),
            "epoch": round(3 * done, 3),
            "tokens_per_second": round(rng.gauss(14_800, 300)),
            "trained_tokens": 2620 * step,
        }
        if step % max(total // 20, 1) == 0:
            values["valid_loss"] = round(0.95 + 1.5 * math.exp(-5 * done) + 0.15 * done, 4)
        if step % 10 == 0:
            values["memory_rss"] = 3_221_225_472 + 4096 * step
        yield step, values


def reinforcement(steps: int, total: int, seed: int = 0) -> Iterator[tuple[int, Values]]:
    """Yield steps 1 to `steps` of a reinforcement run that would have `total` steps."""
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        done = step / total
        reward = 0.2 + 0.6 * (1 - math.exp(-4 * done)) + rng.gauss(0, 0.04)
        values: Values = {
            "train_loss": round(rng.gauss(0.002, 0.004), 5),
            "reward": round(reward, 4),
            "reward_std": round(0.35 - 0.2 * done, 4),
            "score_right": round(reward, 4),
            "score_short": round(0.5 + 0.3 * done + rng.gauss(0, 0.02), 4),
            "kl": round(0.002 + 0.03 * done + abs(rng.gauss(0, 0.002)), 5),
            "entropy": round(1.1 - 0.6 * done, 4),
            "clip_ratio": round(abs(rng.gauss(0.01, 0.005)), 4),
            "frac_reward_zero_std": round(min(0.1 + 0.3 * done, 1.0), 3),
            "ungraded_share": 0.0,
            "truncated_share": round(max(0.1 - 0.1 * done, 0.0), 3),
            "completion_length": round(180 - 60 * done + rng.gauss(0, 4), 1),
            "completion_length_max": 256.0,
            "learning_rate": 1e-5 * (1 - 0.9 * done),
            "grad_norm": round(abs(rng.gauss(0.4, 0.1)), 3),
        }
        if step % max(total // 10, 1) == 0:
            values["valid_reward"] = round(reward - 0.05, 4)
        if step % 5 == 0:
            values |= {"generate_share": 0.62, "forward_share": 0.1, "backward_share": 0.21}
            values |= {"rollout_gap": round(abs(rng.gauss(0.004, 0.001)), 5)}
        yield step, values
