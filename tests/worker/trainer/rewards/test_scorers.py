"""Single graders, templates and formulas, on good completions and hostile ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith_schema.formulas import parse_formula
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.rewards import missing_fields
from tunesmith_worker.trainer.rewards.formula import evaluate
from tunesmith_worker.trainer.rewards.protocol import GraderError, Item
from tunesmith_worker.trainer.rewards.templates import GraderInput, renderer

from .rows import Row, error, grader, sample, score

CHECK = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.a}}"}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "n": {"$ref": "#/$defs/n"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("operation", "text", "reference", "value"),
    [
        ("eq", "Paris", "Paris", 1.0),
        ("eq", "paris", "Paris", 0.0),
        ("ne", "Paris ", "Paris", 1.0),
        ("like", "It is Paris.", "Paris", 1.0),
        ("like", "It is paris.", "Paris", 0.0),
        ("ilike", "In STRASSE 5", "Straße", 1.0),
        ("eq", "5", 5, 1.0),
        ("eq", "0.5", 0.5, 1.0),
        ("eq", "true", True, 1.0),
        ("eq", '{"a": ["ü", null]}', {"a": ["ü", None]}, 1.0),
    ],
)
def test_string_check(operation: str, text: str, reference: object, value: float) -> None:
    assert score(text, {"a": reference}, operation=operation, **CHECK) == value  # type: ignore[dict-item]  # pydantic's JsonValue is invariant


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        (r"^<think>.*</think>", "<think>a\n</think>", 0.0),
        (r"(?s)^<think>.*</think>", "<think>a\n</think>", 1.0),
        (r"\d+$", "it is 5\n", 1.0),
        (r"^b", "a\nb", 0.0),
        (r"(?P<x>a)(?=b)(?<!c)(?P=x)?", "ab", 1.0),
        (r"[[]", "[", 1.0),
        ("é{2}", "caféé", 1.0),
    ],
)
def test_a_regex_means_what_it_does_in_python(pattern: str, text: str, value: float) -> None:
    assert score(text, type="regex", pattern=pattern) == value


def test_a_regex_may_ignore_case() -> None:
    assert score("ANSWER", type="regex", pattern="answer") == 0.0
    assert score("ANSWER", type="regex", pattern="answer", ignore_case=True) == 1.0


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_backtracks_without_end_is_given_up(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_worker.trainer.rewards.scorers.PATTERN_SECONDS", 0.1)
    found = error("a" * 5000 + "!", type="regex", pattern=pattern)
    assert "took more than 0.1 s on one completion" in found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"city": "Bern", "n": 3}', 1.0),
        ('  ```json\n{"city": "Bern"}\n```\n', 1.0),
        ('```\n{"city": "Bern"}```', 1.0),
        ('Here it is: {"city": "Bern"}', 0.0),
        ('{"city": "bern"}', 0.0),
        ('{"city": "Bern", "n": -1}', 0.0),
        ('{"city": "Bern", "m": 1}', 0.0),
        ('{"city": "Bern"', 0.0),
        ('{"city": "Bern", "n": NaN}', 0.0),
        ('{"city": "Bern", "n": ' + "9" * 10_000 + "}", 0.0),
        ("[" * 1_000_000, 0.0),
        ("[" * 900 + "]" * 900, 0.0),
        ("\ud800", 0.0),
        ("", 0.0),
    ],
    ids=lambda value: str(value)[:12].encode("ascii", "replace").decode(),
)
def test_json_is_held_to_its_schema(text: str, value: float) -> None:
    assert score(text, type="json_schema", json_schema=CITY) == value


def test_a_schema_bounds_its_own_patterns_and_depth() -> None:
    trap = {"type": "string", "pattern": "(a|aa)+$"}
    assert score('"' + "a" * 30_000 + '!"', type="json_schema", json_schema=trap) == 0.0
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert score("[" * 500 + "]" * 500, type="json_schema", json_schema=tree) == 1.0
    assert score("[" * 900 + "]" * 900, type="json_schema", json_schema=tree) == 0.0
    deep = {**CHECK, "input": "{{sample.output_json}}", "operation": "ne"}
    assert score("[" * 900 + "]" * 900, {"a": "x"}, **deep) == 0.0


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strin"}, '"strin" is not valid'),
        ({"properties": {"a": {"pattern": "("}}}, '"(" is not a "regex"'),
        ({"$ref": "#/$defs/a"}, "Pointer '/$defs/a' does not exist"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_the_run(
    schema: dict[str, object], says: str
) -> None:
    with pytest.raises(RunError) as caught:
        score("{}", type="json_schema", json_schema=schema)
    assert caught.value.failure.category == "grader"
    assert says in caught.value.failure.message


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("tokens", "x", 0.5),  # 5 tokens
        ("characters", "abcd", 1.0),
        ("characters", "abcdef", 0.0),
        ("characters", "é" * 5, 0.5),
        ("words", "a b\nc  d", 1.0),
        ("words", "word " * 200_000, 0.0),
    ],
)
def test_length_falls_from_target_to_limit(unit: str, text: str, value: float) -> None:
    assert score(text, type="length", unit=unit, target=4, limit=6) == value


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{item.b.c[1].d}}!", "deep!"),
        ("{{item.n}} {{item.f}} {{item.none}} {{item.yes}}", "3 0.5 null true"),
        ("{{ item['two words'] }}", "2"),
        ("{{sample.output_text}}", '{"x": [1, {"y": "z"}]}'),
        ("{{sample.output_json.x[1].y}}", "z"),
        ("{{sample.output_json.x}}", '[1, {"y": "z"}]'),
    ],
)
def test_a_template_is_filled_in(template: str, text: str) -> None:
    item = {
        "b": {"c": [0, {"d": "deep"}]},
        "n": 3,
        "f": 0.5,
        "none": None,
        "yes": True,
        "two words": "2",
    }
    completion = GraderInput(Row(item), sample('{"x": [1, {"y": "z"}]}'))  # type: ignore[arg-type]  # pydantic's JsonValue is invariant
    assert renderer(template)(completion) == text


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.text(), st.text())
def test_text_is_filled_in_as_it_is(text: str, answer: str) -> None:
    completion = GraderInput(Row({"x": text}), sample(answer))
    assert renderer("{{item.x}}|{{sample.output_text}}")(completion) == f"{text}|{answer}"


@pytest.mark.parametrize("text", ["no JSON", "{}", "[]", '{"a": null}', '{"a": {}}'])
def test_a_completion_without_what_is_read_is_worth_nothing(text: str) -> None:
    fields = {**CHECK, "input": "{{sample.output_json.a.b}}", "operation": "ne"}
    assert score(text, {"a": "x"}, **fields) == 0.0


def test_a_row_without_a_field_is_an_error_that_names_row_field_and_what_there_is() -> None:
    found = error("x", {"b": 1, "c": 2}, operation="eq", **CHECK)
    assert found == "string_check: row 1: {{item.a}} is missing: the row has b, c"


@pytest.mark.parametrize(
    ("field", "there"),
    [
        ("item.n[7]", "the row's 'n' is a list of 2"),
        ("item.n[0].x", "the row's 'n[0]' is 5"),
        ("item.o.p.q", "the row's 'o.p' is empty"),
        ("item.o.r", "the row's 'o' has p"),
        ("item.z", "the row has n, o"),
    ],
)
def test_the_place_where_a_path_ends_is_named(field: str, there: str) -> None:
    row: Item = {"n": [5, 6], "o": {"p": {}}}
    asked = grader("string_check", operation="eq", input=f"{{{{{field}}}}}", reference="x")
    (missing,) = missing_fields(asked, [row])
    assert str(missing) == f"the grader reads {{{{{field}}}}}, which is missing: {there}"


def test_what_rows_lack_is_found_before_the_run() -> None:
    both = {**CHECK, "operation": "eq"}
    asked = grader(
        "multi",
        graders={"x": both, "y": {**both, "reference": "{{item.b[0]}}"}},
        calculate_output="x + y",
    )
    found = missing_fields(asked, [{"a": 1, "b": [1]}, {"b": []}, {"a": None}, {"c": 1}])
    assert {field.field: (field.first, field.rows) for field in found} == {
        "item.b[0]": (1, 3),
        "item.a": (1, 2),
    }
    assert str(found[0]).startswith("the grader reads {{item.")
    assert missing_fields(asked, [{"a": 1, "b": [1]}]) == []


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("a + b * 2", 2.0),
        ("a ^ 2 - -b", 1.0),
        ("2 ** 3 ** 2 % 7", 1.0),
        ("a if b > 0.6 else 1 - b", 0.5),
        ("0 < a < b <= 0.75", 1.0),
        ("a == 0.5 and b", 0.75),
        ("not a or b != 0.75", 0.0),
        ("min(a, b, 0.6) + max(a, b)", 1.25),
        ("abs(-a) + floor(1.5) + ceil(0.2)", 2.5),
        ("exp(log(a)) + sqrt(0.25)", 1.0),
    ],
)
def test_a_formula_is_evaluated(formula: str, value: float) -> None:
    scores = {"a": 0.5, "b": 0.75}
    assert evaluate(parse_formula(formula, scores), scores) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "formula",
    [
        "a / (b - b)",
        "a % 0",
        "0 ^ -1",
        "(-a) ^ 0.5",
        "9 ** 9 ** 9 ** 9",
        "10.0 ** 200 * 10.0 ** 200",
        "exp(1000)",
        "log(0)",
        "sqrt(-1)",
        "floor(1e308 * 10)",
    ],
)
def test_a_formula_without_a_finite_value_is_an_error_of_the_sample(formula: str) -> None:
    scores = {"a": 0.5, "b": 0.75}
    with pytest.raises(GraderError, match=r"the formula.*with a=0\.5, b=0\.75"):
        evaluate(parse_formula(formula, scores), scores)


_NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 3)).map(str)
_FORMULAS = st.recursive(
    st.one_of(_NUMBERS, st.sampled_from(["a", "b"])),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "<", "and", "or"]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(_FORMULAS)
def test_a_formula_means_what_python_means(formula: str) -> None:
    scores = {"a": 0.25, "b": -3.0}
    expected = float(eval(formula, {"__builtins__": {}}, dict(scores)))
    found = evaluate(parse_formula(formula, scores), scores)
    assert math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-12)
