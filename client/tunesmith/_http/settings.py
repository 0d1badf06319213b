"""What the SDK and the command line take from the environment: read here, nowhere else.

Without pydantic-settings, which a bare installation does not have.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr

from tunesmith_schema.variables import PREFIX, misspelled

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


class ClientSettings(BaseModel):
    """A variable that is set to nothing counts as not set."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    base_url: str = DEFAULT_BASE_URL
    """The server's API, with `/v1`."""
    api_key: SecretStr = SecretStr("")
    """An API key; not set: the command line looks into `.tunesmith/api-key`."""

    @classmethod
    def from_environment(cls) -> Self:
        given = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in cls.model_fields}
        return cls.model_validate({name: value for name, value in given.items() if value})


def unknown_variables() -> list[str]:
    """What to say of TUNESMITH_* variables that nothing reads."""
    return misspelled(os.environ)


def cache_folder() -> Path:
    """The platform's place for what may be lost."""
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tunesmith"
