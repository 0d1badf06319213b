"""Write docs/reference/recipe.md and the table of docs/reference/settings.md from the code.

Run `python docs/generate.py`. A test compares the pages with the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from tunesmith._http.settings import ClientSettings
from tunesmith_schema import Hyperparameters, ReinforcementHyperparameters
from tunesmith_schema.recipe_fields import RECIPE_OBJECTS, allowed_values
from tunesmith_server.core.settings import Settings
from tunesmith_worker.inference.settings import InferenceSettings
from tunesmith_worker.supervisor.settings import WorkerSettings

REFERENCE = Path(__file__).parent / "reference"

INTRO = """# The recipe

Generated from the schema by `python docs/generate.py`; do not edit.

`recipe` in the body of `POST /v1/fine_tuning/jobs` sets the training options. Every field is
optional. An unknown field is an error; the message names the most similar valid field.
"""


def recipe_page() -> str:
    """Return docs/reference/recipe.md as Markdown."""
    parts = [
        INTRO,
        *(table(name, model) for name, model in RECIPE_OBJECTS.items()),
        "OpenAI's hyperparameters keep their meaning. If `recipe` sets a different value for the "
        "same setting, the request fails with an error.\n",
        table("hyperparameters", Hyperparameters),
        table("method.reinforcement.hyperparameters", ReinforcementHyperparameters),
    ]
    return "\n".join(parts)


def table(name: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    rows = [
        f"| `{key}` | {allowed_values(schema['properties'][key])} | {default(field)} | "
        f"{(field.description or '').replace('|', '/')} |".replace("\n", " ")
        for key, field in model.model_fields.items()
    ]
    head = f"## `{name}`\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return (
        "none" if value is None else f"`{str(value).lower() if value in (True, False) else value}`"
    )


PROCESSES: dict[str, type[BaseModel]] = {
    "server": Settings,
    "worker": WorkerSettings,
    "inference": InferenceSettings,
    "client": ClientSettings,
}
TABLE = re.compile(r"^\| variable \|.*?\n(?=\n)", re.DOTALL | re.MULTILINE)


def settings_page() -> str:
    """Return docs/reference/settings.md with its table regenerated."""
    rows: dict[str, list[tuple[str, FieldInfo, str]]] = {}
    for process, model in PROCESSES.items():
        schema = model.model_json_schema(by_alias=False)
        for name, field in model.model_fields.items():
            value = settings_kind(schema["properties"][name])
            rows.setdefault(variable(name, field), []).append((process, field, value))
    head = "| variable | process | default | value | meaning |\n|---|---|---|---|---|\n"
    new = head + "".join(f"{settings_row(name, uses)}\n" for name, uses in sorted(rows.items()))
    page, count = TABLE.subn(lambda _: new, REFERENCE.joinpath("settings.md").read_text())
    assert count == 1, (
        "docs/reference/settings.md must have one table whose first column is `variable`"
    )
    return page


def variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"TUNESMITH_{name.upper()}"


def settings_row(name: str, uses: list[tuple[str, FieldInfo, str]]) -> str:
    """Return a row of the table. If processes have different values, the row lists each process."""

    def joined(values: list[str], separator: str = "; ") -> str:
        if len(set(values)) == 1:
            return values[0]
        pairs = zip(uses, values, strict=True)
        return separator.join(f"{use[0].capitalize()}: {value}" for use, value in pairs)

    meanings = [(field.description or "").replace("\n", " ").rstrip(".") for _, field, _ in uses]
    cells = [
        f"`{name}`",
        ", ".join(process for process, _, _ in uses),
        joined([settings_default(field) for _, field, _ in uses]),
        joined([limits for _, _, limits in uses]),
        joined(meanings, ". ") + ".",
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def settings_kind(schema: dict[str, Any]) -> str:  # Any: a JSON schema
    """Describe the allowed values of a setting, including the pattern or format of a string."""
    for member in [schema, *schema.get("anyOf", [])]:
        if "pattern" in member:
            return f"matches `{member['pattern']}`"
        if "format" in member:
            return {"path": "path", "password": "secret"}[member["format"]]
    return allowed_values(schema)


def settings_default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    value = value.get_secret_value() if isinstance(value, SecretStr) else value
    value = str(value).lower() if isinstance(value, bool) else value
    return "none" if value in (None, "") else f"`{value}`"


if __name__ == "__main__":
    REFERENCE.joinpath("recipe.md").write_text(recipe_page())
    REFERENCE.joinpath("settings.md").write_text(settings_page())
