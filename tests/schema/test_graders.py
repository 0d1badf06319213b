"""What a grader may be, and where the complaint points when it is not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tunesmith_schema import Grader, MultiGrader
from tunesmith_schema.field_errors import field_errors
from tunesmith_schema.formulas import parse_formula, used_names
from tunesmith_schema.methods import ReinforcementMethod
from tunesmith_schema.templates import Reference, parse_template

# Any: graders are JSON
GRADER: TypeAdapter[Any] = TypeAdapter(Grader)
CHECK = {
    "type": "string_check",
    "name": "right",
    "input": "{{sample.output_text}}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}


def multi(formula: str = "right", **graders: object) -> dict[str, object]:
    return {
        "type": "multi",
        "graders": graders or {"right": CHECK},
        "calculate_output": formula,
    }


def complaint(grader: object) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        GRADER.validate_python(grader)
    (only,) = field_errors(caught.value.errors())
    return only.name, only.message


@pytest.mark.parametrize("graders", [{"right": CHECK}, CHECK])
def test_a_multi_grader_takes_a_map_or_one_grader_and_gives_back_what_it_took(
    graders: dict[str, Any],
) -> None:
    sent = {"type": "multi", "name": "all", "graders": graders, "calculate_output": "right ^ 2"}
    grader = GRADER.validate_python(sent)
    assert isinstance(grader, MultiGrader)
    assert list(grader.by_name) == ["right"]
    assert grader.model_dump() == sent
    assert GRADER.validate_json(grader.model_dump_json()) == grader


@pytest.mark.parametrize(
    ("grader", "place", "says"),
    [
        ({"type": "python", "source": "x"}, "", "has no sandbox"),
        ({"type": "score_model"}, "", "graders that use a model are not available yet"),
        ({"type": "exact"}, "", "unknown grader type 'exact'; the types are string_check"),
        ({"type": ["x"]}, "", "unknown grader type"),
        (3, "", "unknown grader type None"),
        ({**CHECK, "operation": "same"}, "operation", "'eq', 'ne', 'like' or 'ilike'"),
        ({**CHECK, "inputs": "x"}, "", "did you mean 'input'?"),
        ({**CHECK, "input": "{{sample.text}}"}, "input", "'{{sample.text}}' is not available"),
        ({**CHECK, "reference": "a {{item.b"}, "reference", "'{{item.b' has no closing }}"),
        ({**CHECK, "reference": "{{item}}"}, "reference", "use {{item.FIELD}}"),
        ({"type": "regex", "pattern": "a("}, "pattern", "unterminated subpattern"),
        ({"type": "regex", "pattern": "(" * 1999}, "pattern", "not a valid regular expression"),
        ({"type": "length", "target": 5, "limit": 5}, "", "limit=5 must be above target=5"),
        (
            {"type": "json_schema", "json_schema": {"items": [{"$ref": "http://x/y"}]}},
            "json_schema",
            "$ref 'http://x/y' refers outside the schema",
        ),
        (multi("right", right={"type": "python"}), "graders.right", "has no sandbox"),
        (multi("right", right=multi()), "graders.right", "cannot contain a multi grader"),
        (multi("r", r={**CHECK, "input": "{{x}}"}), "graders.r.input", "is not available"),
        (multi("1", **{"a b": CHECK}), "graders", "'a b' cannot be used in a formula"),
        (multi("1", max=CHECK), "graders", "'max' cannot be used in a formula"),
        (multi("wrong"), "calculate_output", "'wrong' is not a grader; the graders are right"),
    ],
)
def test_a_wrong_grader_is_refused_with_the_place(grader: object, place: str, says: str) -> None:
    name, message = complaint(grader)
    assert name == place
    assert says in message


@pytest.mark.parametrize(
    ("grader", "reads"),
    [
        (CHECK, True),
        ({**CHECK, "input": "{{item.a}}", "reference": "{{sample.output_json.a}}"}, True),
        ({**CHECK, "input": "{{item.a}}"}, False),
        ({"type": "length", "target": 1, "limit": 2}, True),
        (multi("a", a={**CHECK, "input": "x"}), False),
        (multi("a * b", a={**CHECK, "input": "{{item.kind}}"}, b=CHECK), True),
    ],
)
def test_a_job_s_grader_reads_the_completion(grader: dict[str, object], reads: bool) -> None:
    if reads:
        assert ReinforcementMethod.model_validate({"grader": grader}).grader.name
    else:
        with pytest.raises(ValidationError) as caught:
            ReinforcementMethod.model_validate({"grader": grader})
        (only,) = field_errors(caught.value.errors())
        assert only.name == "grader"
        assert "gives every completion of a prompt the same score" in only.message


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("a.__class__", "Attribute is not allowed"),
        ("a[0]", "Subscript is not allowed"),
        ("(lambda: 1)()", "is not a function"),
        ("[a for a in a]", "ListComp is not allowed"),
        ("(b := a)", "NamedExpr is not allowed"),
        ("f'{a}'", "JoinedStr is not allowed"),
        ("__import__('os')", "is not a function; the functions are min"),
        ("'a' * 3", "constants must be finite numbers"),
        ("True", "constants must be finite numbers"),
        ("1e999", "constants must be finite numbers"),
        ("9" * 5000, "not a valid formula"),
        ("a // 2", "uses an unknown operator"),
        ("a << 9", "uses an unknown operator"),
        ("a is a", "uses an unknown operator"),
        ("a in a", "uses an unknown operator"),
        ("~a", "uses an unknown operator"),
        ("min(*a)", "Starred is not allowed"),
        ("min(a, key=a)", "min takes one or more arguments"),
        ("min()", "min takes one or more arguments"),
        ("sqrt(a, 2)", "sqrt takes exactly one argument"),
        ("max", "'max' is not a grader; the graders are a"),
        ("a +", "is not a valid formula"),
        ("a; a", "is not a valid formula"),
        ("a\x00", "is not a valid formula"),
        ("(" * 900 + "a" + ")" * 900, "is not a valid formula"),
        ("-" * 1900 + "a", "nested more than 100 levels deep"),
        ("+".join("a" * 900), "nested more than 100 levels deep"),
    ],
)
def test_a_formula_holds_arithmetic_alone(formula: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_formula(formula, {"a"})
    assert says in str(caught.value)


def test_a_formula_names_the_graders_it_reads() -> None:
    tree = parse_formula("0.5 * min(a, max) if b > 0.5 and not c else -1", {"a", "b", "c", "max"})
    assert used_names(tree) == {"a", "b", "c", "max"}


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("", ()),
        ("no { reference } here", ("no { reference } here",)),
        ("{{item.a}}", (Reference("item", ("a",), "item.a"),)),
        (
            "x {{ item.a.b[2].c }} y",
            ("x ", Reference("item", ("a", "b", 2, "c"), "item.a.b[2].c"), " y"),
        ),
        ('{{item["two words"]}}', (Reference("item", ("two words",), 'item["two words"]'),)),
        ("{{item.größe-x}}", (Reference("item", ("größe-x",), "item.größe-x"),)),
        (
            "{{sample.output_text}}{{sample.output_json[0].x}}",
            (
                Reference("output_text", (), "sample.output_text"),
                Reference("output_json", (0, "x"), "sample.output_json[0].x"),
            ),
        ),
    ],
)
def test_templates_are_read(template: str, parts: tuple[str | Reference, ...]) -> None:
    assert parse_template(template) == parts


@pytest.mark.parametrize(
    "reference", ["", "item.", ".item.a", "item..a", "item.a b", "[0]", "item.a[-1]", "item.a[x]"]
)
def test_what_is_no_reference_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match=r"use \{\{item"):
        parse_template("{{" + reference + "}}")
