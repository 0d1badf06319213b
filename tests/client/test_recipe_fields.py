"""`client.fine_tuning.recipe_fields` and `tunesmith jobs recipe-fields`."""

from __future__ import annotations

from .conftest import Tunesmith
from .fakes import page
from .local_server import LocalServer


def test_the_command_lists_the_fields(tunesmith: Tunesmith, server: LocalServer) -> None:
    rank = {
        "id": "recipe.lora.r", "object": "recipe.field", "types": ["integer"], "default": 32,
        "values": "integer ≥ 1, ≤ 512", "description": "Rank.",
    }  # fmt: skip
    server.answers["GET /v1/fine_tuning/recipe"] = page(rank, {**rank, "id": "recipe.packing"})
    done = tunesmith("jobs", "recipe-fields", "lora")
    assert done.exit_code == 0, done.output
    assert all(word in done.stdout for word in ("lora.r", "≥ 1", "32", "Rank."))
    assert "packing" not in done.stdout
