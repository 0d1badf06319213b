"""The checks that run the model: which passes each needs, and in what they are computed."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext

import peft
import torch

from tunesmith_worker.rundir.errors import is_out_of_memory

from .check_context import Subject, Untyped
from .findings import Outcome, not_applicable
from .model_runs import (
    Pass,
    adapter_moved,
    adapter_off,
    backbone_of,
    first_layers,
    in_fp32,
    ours_again,
    run_alone,
    run_pass,
    stock,
    undisturbed,
)
from .parity import (
    COARSE,
    EXACT,
    EXACT_GPU,
    Limits,
    acts,
    as_near_as_stock,
    is_fresh,
    patched_equals_stock,
    rows_apart,
    starts_from_base,
)
from .sample_batch import Piece, take_piece

SECONDS = 20.0
"""What has not begun by then is skipped: a model so large trains for hours, and the passes of the
adapter and of rows come first."""
LAYERS = 8
"""Kernels are compared over so many: the kinds of layers take turns, at most every sixth."""
FP32_SHARE = 0.5
"""Of what the weights leave free, which fp32 weights and gradients may take meanwhile."""
_LEAST_CHANGE = {True: 1e-5, False: 1e-3}
_FRESH = {True: 1e-4, False: 0.1}
"""By whether it computes in fp32."""


class Numerics:
    """The passes of one piece of data."""

    def __init__(self, subject: Subject, piece: Piece) -> None:
        self.subject, self.piece = subject, piece
        self.began = time.perf_counter()
        self.fp32 = subject.load_plan.precision == "fp32"
        config = subject.model.config.get_text_config()
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        self.experts = any(getattr(config, name, None) for name in names)

    def outcomes(self) -> list[Outcome]:
        subject = self.subject
        with undisturbed(subject.model, subject.trainer.args.device):
            found = [] if subject.full else self._adapter()
            with adapter_moved(subject.model):
                return found + self._compared()

    def _adapter(self) -> list[Outcome]:
        model = self.subject.model
        with adapter_off(model):
            base = self._run(backward=False)
        found = []
        if is_fresh(model):
            fresh = self._run(backward=False)
            found.append(starts_from_base(fresh, base, _FRESH[self._exactly]))
        else:
            found.append(not_applicable("fresh_adapter", "it has been trained before"))
        with adapter_moved(model):
            moved = self._run(backward=True)
        trained = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
        if not self.piece.attends:
            trained = [n for n in trained if ".q_proj." not in n and ".k_proj." not in n]
        least = _LEAST_CHANGE[self._exactly]
        return [acts(moved, base, least, trained, experts=self.experts), *found]

    @property
    def _exactly(self) -> bool:
        """Whether rounding is fp32's: int8 products round to 8 bits, by what else is there."""
        return self.fp32 and self.subject.recipe.quantization != "int8"

    def _compared(self) -> list[Outcome]:
        if self._late:
            return _skipped(f"{SECONDS:.0f} s were used up")
        try:
            return self._rows_and_kernels()
        except Exception as error:  # out of memory comes as many types; others go on
            if not is_out_of_memory(error):
                raise
        # The exception is gone, and with it all that its frames held. Training needs less.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return _skipped("memory ran out")

    def _rows_and_kernels(self) -> list[Outcome]:
        count = self._layers()
        with first_layers(self.subject.model, count) if count else nullcontext():
            if self._exactly or not count:
                return self._direct(self._limits if self._exactly else COARSE)
            return self._through_fp32()

    def _direct(self, limits: Limits) -> list[Outcome]:
        """In what training computes in."""
        subject, piece, trainer = self.subject, self.piece, self.subject.trainer
        ours = self._run(backward=True)
        rows = self._apart(ours, limits)
        if subject.patched is None:
            return [rows, _UNPATCHED]
        with stock(subject.patched):
            theirs = run_pass(trainer, piece.padded, backward=True)
        how = "fp32" if self.fp32 else "16 bits"
        return [rows, patched_equals_stock(ours, theirs, limits, computed_in=how)]

    def _through_fp32(self) -> list[Outcome]:
        subject, piece, trainer = self.subject, self.piece, self.subject.trainer
        patched, limits = subject.patched, self._limits
        ours_16 = self._run(backward=True) if patched else None
        with stock(patched):
            theirs_16 = run_pass(trainer, piece.padded, backward=True) if patched else None
            with in_fp32(subject.model):
                if patched is None:
                    return [self._apart(self._run(backward=True), limits), _UNPATCHED]
                theirs = run_pass(trainer, piece.padded, backward=True)
                with ours_again(patched):
                    ours = self._run(backward=True)
                    rows = self._apart(ours, limits)
        assert ours_16 is not None
        assert theirs_16 is not None
        proven = patched_equals_stock(ours, theirs, limits, computed_in="fp32")
        return [rows, as_near_as_stock(ours_16, theirs_16, theirs, proven)]

    def _apart(self, together: Pass, limits: Limits) -> Outcome:
        alone = run_alone(self.subject.trainer, self.piece.alone)
        return rows_apart(together, alone, limits, experts=self.experts)

    def _run(self, *, backward: bool) -> Pass:
        return run_pass(self.subject.trainer, self.piece.in_use, backward=backward)

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self.began > SECONDS

    @property
    def _limits(self) -> Limits:
        return EXACT_GPU if self.subject.trainer.args.device.type == "cuda" else EXACT

    def _layers(self) -> int:
        """How many layers to compare over; 0: all as they are, as fp32 cannot be had."""
        model, planner = self.subject.model, self.subject.memory.planner
        free = planner.memory.free - planner.tuning.weights - planner.tuning.adapter
        layers = getattr(backbone_of(model), "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            return 0
        if self._exactly:
            return min(LAYERS, len(layers))
        if self.subject.recipe.quantization != "none" or has_whole_matrices(model):
            return 0
        count = min(LAYERS, len(layers))
        while count and fp32_bytes(model, layers, count) > FP32_SHARE * free:
            count //= 2
        return count


def fp32_bytes(model: Untyped, layers: torch.nn.ModuleList, count: int) -> int:
    """Of weights in fp32 and three sets of gradients, with the first `count` layers."""
    left_out = {id(p) for layer in layers[count:] for p in layer.parameters()}
    taken = [p for p in model.parameters() if id(p) not in left_out]
    return sum(4 * p.numel() * (1 + 3 * p.requires_grad) for p in taken)


def _skipped(why: str) -> list[Outcome]:
    names = ("rows_apart", "patched_equals_stock")
    return [Outcome(check=name, state="skipped", detail=why) for name in names]


def has_whole_matrices(model: Untyped) -> bool:
    """They compute in the base model's dtype (engine/model/embeddings/whole_matrices.py)."""
    return any(isinstance(one, peft.utils.ModulesToSaveWrapper) for one in model.modules())


_UNPATCHED = not_applicable("patched_equals_stock", "recipe.patches is 'off'")


def check_numerics(subject: Subject) -> list[Outcome]:
    """`adapter_acts`, `fresh_adapter`, `rows_apart` and `patched_equals_stock`."""
    return Numerics(subject, take_piece(subject)).outcomes()
