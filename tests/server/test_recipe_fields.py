"""`GET /v1/fine_tuning/recipe`."""

from __future__ import annotations

from tunesmith_schema import recipe_fields

from .actors import Server


def test_all_recipe_fields_are_listed(server: Server) -> None:
    page = server.user.json("/v1/fine_tuning/recipe")
    assert [field["id"] for field in page["data"]] == [field.id for field in recipe_fields()]
    (rank,) = [field for field in page["data"] if field["id"] == "recipe.lora.r"]
    assert (rank["default"], rank["minimum"], rank["maximum"]) == (32, 1, 512)
    assert (page["object"], page["has_more"]) == ("list", False)
    assert server.anonymous.get("/v1/fine_tuning/recipe").status_code == 401
