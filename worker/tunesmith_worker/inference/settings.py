"""Settings of the inference process, read once at start from TUNESMITH_* variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from tunesmith_schema.model_dirs import named_folders
from tunesmith_worker.rundir.process import default_environment


class InferenceSettings(BaseSettings):
    """Settings of one inference process. An empty variable counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix="TUNESMITH_",
        env_ignore_empty=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    inference_token: SecretStr = SecretStr("")
    """Secret that requests to the inference server carry."""
    inference_cache: Path = Path(".tunesmith/inference")
    """Folder of the adapters that inference has loaded. Default: `inference/` in the data
    directory. A server at TUNESMITH_INFERENCE_URL must be able to read this folder under the same
    path."""
    inference_cache_bytes: int = Field(default=20_000_000_000, gt=0)
    """Maximum bytes of TUNESMITH_INFERENCE_CACHE. The files that were unused for the longest time
    are deleted first; the API sends them again."""
    inference_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that answers chat requests. `auto`: a GPU that no worker uses, or the CPU if the host
    has no GPU. If all GPUs belong to workers, chat waits. `cuda`: a GPU, even if trainers use it;
    trainers have priority. `cpu`: the CPU."""
    inference_idle_seconds: float = Field(default=600.0, gt=0.0)
    """Seconds after the last request until a base model is unloaded."""
    model_dirs: str = ""
    """Colon-separated folders; each of their subfolders is a base model."""

    def base_folder(self, name: str) -> str:
        """Return the folder of base model `name`; the name itself if it is a Hugging Face id."""
        for directory in named_folders(self.model_dirs):
            if name == Path(name).name and (directory / name / "config.json").is_file():
                return str(directory / name)
            path = (directory / name).resolve()
            if path.is_relative_to(directory) and (path / "config.json").is_file():
                return str(path)
        return name

    def check(self) -> None:
        """Raise ValueError if a required setting is missing."""
        if not self.inference_token.get_secret_value():
            raise ValueError(
                "TUNESMITH_INFERENCE_TOKEN is not set: set it to the secret that the API sends"
            )


def set_environment() -> None:
    """Set defaults for CPU threads.

    All GPUs stay visible, so that chat can choose a GPU that no trainer uses.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    default_environment(os.environ)
    if visible is None:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
