"""Stored models of an evaluation on demand: one model at a time is loaded, just before its use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.engine.patches.own_head import OwnHead, check_head
from tunesmith_worker.engine.patches.trl_compat import add_scoring_head
from tunesmith_worker.engine.serving.base import BaseModel, load, loading_bytes
from tunesmith_worker.engine.serving.protocol import ServingError
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.evaluation_spec import ModelFolders

from .models import LeftOut

Untyped = Any  # Any: transformers and PEFT are not typed


class StoredModel:
    """A base model, full weights, or a base model with a LoRA adapter.

    Weights are fp32 on a CPU. On a GPU, weights keep the number format of the checkpoint."""

    def __init__(self, folders: ModelFolders, device: torch.device, param: str) -> None:
        """`param`: request field that contains the model's name; errors refer to this field."""
        self.folders, self._device, self._param = folders, device, param
        self._loaded: tuple[BaseModel, Untyped] | None = None
        adapter = folders.adapter
        added_tokens = adapter is not None and (Path(adapter) / "tokenizer.json").is_file()
        self._tokenizer_folder = adapter if added_tokens else None

    @property
    def base(self) -> BaseModel:
        """The base model with its tokenizer. Raises RunError if the base model cannot be loaded."""
        return self._load()[0]

    @contextmanager
    def use(self) -> Iterator[Untyped]:
        """Yield the model in evaluation mode, and free the model's memory at the end of the
        block."""
        try:
            yield self._load()[1]
        finally:
            self.close()

    @contextmanager
    def use_like(self, other: StoredModel, vocabulary: dict[str, int]) -> Iterator[Untyped]:
        """Yield the model in evaluation mode, for a comparison with `other`. `vocabulary`: tokens
        of `other`. Raises LeftOut if the model and `other` have different tokens.
        """
        own = transformers.AutoTokenizer.from_pretrained(
            self._tokenizer_folder or self.folders.base, trust_remote_code=False
        )
        if own.get_vocab() != vocabulary:
            raise LeftOut(
                f"{self.folders.name} and {other.folders.name} have different tokenizers, so "
                "their tokens cannot be compared"
            )
        with self.use() as model:
            yield model

    def close(self) -> None:
        """Free the model's memory."""
        self._loaded = None
        release_cached_memory()

    def _load(self) -> tuple[BaseModel, Untyped]:
        if self._loaded is None:
            release_cached_memory()  # the model before this one may be garbage by now
            try:
                self._check_memory()
                base = load(
                    self.folders.name, self.folders.base, self._device, self._tokenizer_folder
                )
            except ServingError as error:
                raise self._unusable(str(error)) from error
            if base.tokenizer.pad_token_id is None:
                # Any token works as padding, because the mask uses positions and not token ids.
                base.tokenizer.pad_token = base.tokenizer.convert_ids_to_tokens(0)
            model = base.model
            add_scoring_head(model)
            if check_head(model):
                OwnHead(model)
            self._loaded = base, self._with_adapter(model).eval()
        return self._loaded

    def _with_adapter(self, model: Untyped) -> Untyped:
        if self.folders.adapter is None:
            return model
        try:
            return peft.PeftModel.from_pretrained(model, self.folders.adapter)
        except Exception as error:  # a broken adapter can raise anything
            raise self._unusable(
                f"the adapter of model {self.folders.name!r} cannot be loaded: {error}"
            ) from error

    def _check_memory(self) -> None:
        needed = loading_bytes(self.folders.name, self.folders.base, self._device) // 2
        free = read_free_memory(self._device, 0).free
        if needed > free:
            raise RunError(
                ErrorCode.OUT_OF_MEMORY,
                f"Model {self.folders.name!r} needs {needed:,} bytes of memory, and {free:,} are "
                "free.",
                category=ErrorCategory.OUT_OF_MEMORY,
                hint="Run the evaluation on a worker with more memory.",
                param=self._param,
            )

    def _unusable(self, reason: str) -> RunError:
        return RunError(
            ErrorCode.MODEL_NOT_USABLE,
            reason[:4000],
            hint="Check that the model loads with transformers and PEFT.",
            param=self._param,
        )
