"""Whether the weights are numbers, the tokens in use have a row, and a tied head is tied."""

from __future__ import annotations

import peft
import torch

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.model.embeddings.matrices import Matrices, Matrix

from .findings import Finding
from .subject import Outcome, Tuned, Untyped, judged

_SHOWN = 3
_BLOCK = 8192  # rows read at a time


def check_weights(subject: Tuned) -> Outcome:
    """`weights`: finite, by the sum of each tensor."""
    named = {n: p.detach() for n, p in subject.model.named_parameters() if p.is_floating_point()}
    sums = torch.stack([one.sum(dtype=torch.float32).cpu() for one in named.values()])
    broken = [name for name, ok in zip(named, sums.isfinite().tolist(), strict=True) if not ok]
    findings = []
    if broken:
        findings.append(
            Finding(
                "weights",
                f"{len(broken)} of {len(named)} tensors hold NaN or infinity (tolerance: 0): "
                f"{', '.join(broken[:_SHOWN])}.",
                "Download the base model again; if it is your own, it was saved from a run that "
                "had diverged.",
                param="model",
            )
        )
    return judged("weights", findings, f"{len(named)} tensors finite")


def check_embeddings(subject: Tuned) -> Outcome:
    """`embeddings`: no row that the data uses is all zero; a head that is tied by the model's
    config shares the embedding's memory."""
    causal = _causal(subject.model)
    matrices = Matrices.of(causal)
    used = subject.used_tokens
    findings = []
    for matrix in matrices.distinct:
        zero = _zero_rows(matrix, used)
        if not zero:
            continue
        names = subject.base.tokenizer.convert_ids_to_tokens(zero[:_SHOWN])
        learns = _weight(matrix.module).requires_grad or _head_has_bias(matrices)
        findings.append(
            Finding(
                "embeddings",
                f"{len(zero)} of {len(used)} rows of {matrix.name} that the data uses are all "
                f"zero (tolerance: 0): {', '.join(map(repr, names))}.",
                "The model cannot tell these tokens from one another: use a base model that has "
                "them, or other tokens in the chat template.",
                level="warn" if learns else "error",
                param="model",
            )
        )
    if _config_ties(causal) and not _shares(matrices):
        findings.append(
            Finding(
                "embeddings",
                "config.json ties the head to the embedding, but they are two tensors.",
                "Report this: what is saved would load as another model.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    return judged("embeddings", findings, f"{len(used)} tokens in use")


def _causal(model: Untyped) -> Untyped:
    return model.get_base_model() if isinstance(model, peft.PeftModel) else model


def _weight(module: Untyped) -> torch.Tensor:
    """The base model's own, below what PEFT puts around it."""
    if isinstance(module, peft.utils.TrainableTokensWrapper):
        module = module.token_adapter.get_base_layer()
    if isinstance(module, peft.utils.ModulesToSaveWrapper):
        module = module.original_module
    weight: torch.Tensor = module.weight
    return weight


def _zero_rows(matrix: Matrix, used: list[int]) -> list[int]:
    weight = _weight(matrix.module)
    if not weight.is_floating_point():
        return []
    index = torch.tensor(used, device=weight.device)
    found = [part[(weight.detach()[part] == 0).all(1)] for part in index.split(_BLOCK)]
    rows: list[int] = torch.cat(found).tolist()
    return rows


def _head_has_bias(matrices: Matrices) -> bool:
    """Such a head's rows are left alone, which has been told (engine/model/embeddings/rows.py)."""
    return matrices.head is not None and getattr(matrices.head.module, "bias", None) is not None


def _config_ties(causal: Untyped) -> bool:
    return bool(getattr(causal.config.get_text_config(), "tie_word_embeddings", False))


def _shares(matrices: Matrices) -> bool:
    if matrices.head is None:
        return True
    one, other = (_weight(m.module) for m in (matrices.embedding, matrices.head))
    return one.data_ptr() == other.data_ptr()
