"""Short chaos test: a few kills of each victim. `make chaos` kills each victim 30 times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..end_to_end.service import Service, write_rows
from ..tiny_model import make_tiny_model
from .campaign import ENV, Campaign

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    root = tmp_path_factory.mktemp("chaos")
    make_tiny_model(root / "models" / "tiny")
    service = Service(root / "service" / "data", root / "models", **ENV).start()
    try:
        made = Campaign(service, write_rows(root / "train.jsonl"), seed=5)
        with made.watcher:
            yield made
    finally:
        service.close()


@pytest.mark.parametrize(
    ("victim", "recipe"),
    [
        ("trainer", "lora"),
        ("trainer", "grpo thrice"),
        ("supervisor", "full bf16_sr8"),
        ("worker", "lora"),
    ],
)
def test_a_job_killed_twice_has_the_result_of_an_undisturbed_job(
    campaign: Campaign, victim: str, recipe: str
) -> None:
    ending = campaign.torment(victim, recipe, kills=2)
    assert ending.problems == []
    assert ending.hits >= 1, "no kill hit the job"
    assert campaign.watcher.looks > 10, "the watcher did not run"
