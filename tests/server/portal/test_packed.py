"""Short forms of curves: what chart.js reads, and paths of drawings."""

from __future__ import annotations

from itertools import accumulate

import pytest

from tunesmith_server.portal.job import packed
from tunesmith_server.portal.view import number, path, sparkline

STEPS = [7, 8, 20, 21]


def values(*given: float | None, finer: bool = True) -> list[float | None]:
    """Return the values that a chart gets for these ones."""
    curve = {"steps": list(range(len(given))), "values": list(given)}
    found = packed.document({"loss": curve}, finer=finer)["curves"]["loss"]["values"]
    assert isinstance(found, list)
    return found


def test_whole_steps_are_differences_and_hours_are_not() -> None:
    found = packed.document({"loss": {"steps": STEPS, "values": [1.0] * 4}}, finer=True)
    curve = found["curves"]["loss"]
    assert curve == {"by": [7, 1, 12, 1], "values": [1, 1, 1, 1]}
    assert list(accumulate(curve["by"])) == STEPS
    hours = {"steps": [0.25, 0.5], "values": [1.0, 2.0]}
    assert packed.document({"loss": hours}, finer=False)["curves"]["loss"] == hours
    tokens = {"steps": [100.0, 250.0], "values": [1.0, 2.0]}
    assert packed.document({"loss": tokens}, finer=False)["curves"]["loss"]["by"] == [100, 150]


def test_void_stretches_are_packed_too() -> None:
    stretch = {"attempt": 1, "first_step": 7, "last_step": 21}
    curves = {"loss": {"steps": STEPS, "values": [1.0] * 4}}
    [found] = packed.document({}, [{**stretch, "curves": curves}], finer=True)["void"]
    assert found == {**stretch, "curves": {"loss": {"by": [7, 1, 12, 1], "values": [1, 1, 1, 1]}}}


@pytest.mark.parametrize(
    "value",
    [0.0, 2.31249, -2.31249, 0.000123456, 1.5e-9, 13982.0, 123456.0, 3.22123e9, 999.949, 1e300],
)
@pytest.mark.parametrize("other", [0.0, 2.4, -1e6, 1e308])
def test_values_keep_the_digits_that_texts_show(value: float, other: float) -> None:
    """The texts are those of the server and of chart.js, which write four significant figures, and
    all digits of numbers above 1,000."""
    short, _ = values(value, other)
    assert short is not None
    assert number(short) == number(value)


def test_values_keep_the_digits_that_a_chart_shows() -> None:
    assert values(2.31234, 2.31256, None) == [2.31234, 2.31256, None]
    assert values(2.31234, 5.0) == [2.312, 5]
    assert values(2.31234, 2.31234) == [2.31234, 2.31234]
    assert values(0.0, 1e-310) == [0.0, 1e-310]
    assert values() == []
    assert values(None) == [None]
    assert values(2.31234, 5.0, finer=False) == [2.31234, 5.0]


def test_a_path_has_differences_and_no_error_adds_up() -> None:
    assert path([(1, 22), (2.5, 20.25), (4, 22), None, (5.04, 0)]) == "m1 22 1.5-1.8 1.5 1.8m1-22"
    third = [(index / 3, index / 7) for index in range(300)]
    steps = path(third, digits=0).removeprefix("m").replace("-", " -").split()
    assert sum(map(int, steps[::2])) == round(299 / 3)
    assert sum(map(int, steps[1::2])) == round(299 / 7)
    assert sparkline([1.0, None, 3.0, 2.0]).count("m") == 2
    assert sparkline([1.0, None]) == ""
