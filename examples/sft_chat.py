"""Train a chat model in four calls, from a file to the tuned model. Run: python
examples/sft_chat.py MODEL FILE [STEPS]"""

from __future__ import annotations

import sys
from pathlib import Path

import tunesmith


def main(model: str, data: Path, max_steps: int = 50) -> Path:
    """Train `model` on `data` and return the folder with the adapter."""
    client = tunesmith.Client()  # reads TUNESMITH_BASE_URL and TUNESMITH_API_KEY
    file = client.files.create(file=data)
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=file.id,
        recipe={"lora": {"r": 16}, "learning_rate": 1e-3, "max_steps": max_steps},
    )
    job.wait(progress=True)
    folder = client.adapters.download(job.id, Path("adapters") / job.id)
    print(f"{job.fine_tuned_model} is in {folder}")
    return folder


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), *(int(steps) for steps in sys.argv[3:]))
