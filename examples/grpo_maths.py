"""Reinforcement training on questions with known answers. Prints the mean reward and a completion
of the first and of the last step.

Run: python examples/grpo_maths.py MODEL FILE [STEPS]. Each row of FILE is {"prompt": ..., "answer":
...}.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import tunesmith

GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}
"""The reward is 1 if the last number of a completion equals the row's `answer`, else 0."""


def main(model: str, data: Path, max_steps: int = 50) -> Path:
    """Train `model` on `data` and return the folder with the adapter."""
    client = tunesmith.Client()  # reads TUNESMITH_BASE_URL and TUNESMITH_API_KEY
    file = client.files.create(file=data)
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=file.id,
        grader=GRADER,
        recipe={
            "lora": {"r": 16},
            "learning_rate": 1e-3,
            "max_steps": max_steps,
            "grpo": {"num_generations": 8, "max_completion_length": 64},
        },
    )
    job.wait(progress=True)
    for step in (1, max_steps):
        samples = list(job.samples(step=step))
        reward = fmean(sample.reward or 0.0 for sample in samples)
        print(f"step {step}: mean reward {reward:.2f} of {len(samples)} completions, for example")
        print(f"  {samples[0].prompt!r} -> {samples[0].completion!r}")
    folder = client.adapters.download(job.id, Path("adapters") / job.id)
    print(f"{job.fine_tuned_model} is in {folder}")
    return folder


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), *(int(steps) for steps in sys.argv[3:]))
