"""An invalid value in any recipe field is refused with the field's name."""

from __future__ import annotations

import pytest

from tunesmith_schema import EarlyStoppingRecipe, Hyperparameters, LoraRecipe, Recipe

from .actors import Server

PATHS = [
    *(("recipe", name) for name in Recipe.model_fields),
    *(("recipe", "lora", name) for name in LoraRecipe.model_fields),
    *(("recipe", "early_stopping", name) for name in EarlyStoppingRecipe.model_fields),
    *(("hyperparameters", name) for name in Hyperparameters.model_fields),
]


@pytest.mark.parametrize("wrong", [[], {"a": 1}, "wrong", -1, None], ids=repr)
def test_the_error_names_the_field(server: Server, wrong: object) -> None:
    file_id = server.good_file()
    for path in PATHS:
        body: dict[str, object] = {path[-1]: wrong}
        for part in reversed(path[:-1]):
            body = {part: body}
        reply = server.create_reply(file_id, **body)
        if reply.status_code == 200:
            optional = {"lora", "early_stopping", "target_modules", "add_tokens"}
            optional |= {"save_total_limit", "keep_every", "max_seconds", "grpo", "rollout"}
            assert path[-1] in optional or wrong == "wrong", path
            continue
        error = reply.json()["error"]
        assert reply.status_code == 400
        expected = ".".join(path)
        if path[-1] in ("lora", "early_stopping", "grpo", "rollout") and isinstance(wrong, dict):
            expected += ".a"
        if path[-1] == "target_modules" and wrong == []:
            expected = "recipe.lora"  # a rule of the whole object
        assert error["param"] == expected, error
        assert error["message"].startswith(error["param"])


def test_the_wrong_part_of_a_grader_is_named(server: Server) -> None:
    file_id = server.good_file()
    regex = {"type": "regex", "pattern": "("}
    wrong = ".calculate_output"
    several = {"type": "multi", "graders": {"form": regex}, "calculate_output": "form"}
    for grader, place in (
        (regex, ".pattern"),
        (several, ".graders.form.pattern"),
        ({"type": "multi", "graders": regex | {"pattern": "a"}, "calculate_output": "form"}, wrong),
        ({"type": "python", "source": "def grade(sample, item): return 1"}, ""),
    ):
        method = {"type": "reinforcement", "reinforcement": {"grader": grader}}
        reply = server.create_reply(file_id, method=method)
        assert reply.status_code == 400, grader
        error = reply.json()["error"]
        assert error["param"] == f"method.reinforcement.grader{place}", error
        assert error["message"].startswith(error["param"])
