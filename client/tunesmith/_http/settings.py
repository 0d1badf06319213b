"""Settings of the SDK and the CLI. Only this module of the client reads the environment.

The settings use plain pydantic, because the client does not depend on pydantic-settings.
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
    """Server address and API key. An empty environment variable counts as not set."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    base_url: str = DEFAULT_BASE_URL
    """Base URL of the API, ending in `/v1`."""
    api_key: SecretStr = SecretStr("")
    """API key. The CLI's default is the content of `./.tunesmith/api-key`."""

    @classmethod
    def from_environment(cls) -> Self:
        values = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in cls.model_fields}
        return cls.model_validate({name: value for name, value in values.items() if value})


def unknown_variables() -> list[str]:
    """Return warnings about TUNESMITH_* variables that no part of Tunesmith reads."""
    return unknown_variable_warnings(os.environ)


def cache_folder() -> Path:
    """Return Tunesmith's folder in the user's cache directory."""
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tunesmith"
