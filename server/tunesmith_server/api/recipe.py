"""Route that describes the fields of the recipe."""

from __future__ import annotations

from fastapi import APIRouter

from tunesmith_schema import Page, RecipeField, recipe_fields

from .deps import CallerDep, KeyRoute

router = APIRouter(prefix="/fine_tuning/recipe", tags=["fine-tuning"], route_class=KeyRoute)


@router.get("")
def list_fields(caller: CallerDep) -> Page[RecipeField]:
    """List all fields of the recipe: types, limits, default and meaning."""
    fields = list(recipe_fields())
    return Page[RecipeField](data=fields, first_id=fields[0].id, last_id=fields[-1].id)
