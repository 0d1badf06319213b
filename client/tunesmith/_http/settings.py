"""Settings of the SDK and the command line; the only reader of the environment in the client.

Plain pydantic: pydantic-settings is not a dependency of the client.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr

from tunesmith_schema.variables import PREFIX, unknown_variable_warnings

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


class ClientSettings(BaseModel):
    """Address and key. An empty variable counts as unset."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    base_url: str = DEFAULT_BASE_URL
    """Base URL of the API, ending in `/v1`."""
    api_key: SecretStr = SecretStr("")
    """API key. Default of the command line: the content of `./.tunesmith/api-key`."""

    @classmethod
    def from_environment(cls) -> Self:
        values = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in cls.model_fields}
        return cls.model_validate({name: value for name, value in values.items() if value})


def unknown_variables() -> list[str]:
    """Warnings about TUNESMITH_* variables that no part of Tunesmith reads."""
    return unknown_variable_warnings(os.environ)


def cache_folder() -> Path:
    """Tunesmith's folder in the platform's cache."""
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tunesmith"
