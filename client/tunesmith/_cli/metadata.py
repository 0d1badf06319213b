"""The option `--metadata KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

_NAME = "--metadata"

MetadataPairs = Annotated[
    list[str] | None,
    typer.Option(
        _NAME, metavar="KEY=VALUE", help="A label of the job, such as team=support. Repeatable."
    ),
]


def build_metadata(pairs: Sequence[str], option: str = _NAME) -> dict[str, str] | None:
    """Return the metadata from `pairs`, or None if there are no pairs. The schema checks lengths
    later."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise typer.BadParameter(
                f"{pair!r} is not KEY=VALUE, such as team=support", param_hint=option
            )
        if key in metadata:
            raise typer.BadParameter(f"key {key!r} occurs twice", param_hint=option)
        metadata[key] = value
    return metadata or None
