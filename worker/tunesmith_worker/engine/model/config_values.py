"""Read values of a model's configuration that a model family may lack or set per layer."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: a configuration of transformers, which is not typed


def config_value(config: Untyped, *names: str) -> Untyped:
    """Return the value of the first name in `names` that the configuration sets, or None.

    A value that differs between layers also counts as not set, because transformers raises an error
    when such a value is read."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except RuntimeError:  # AmbiguousGlobalPerLayerAttributeError
            continue
        if value is not None:
            return value
    return None


def config_size(config: Untyped, *names: str) -> int | None:
    """Return the value of the first name in `names` whose value is a positive integer, or None."""
    for name in names:
        value = config_value(config, name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
