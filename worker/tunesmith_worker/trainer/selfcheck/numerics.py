"""Checks of a supervised run that need forward passes of the model, and the precision of each
check."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext

import peft
import torch

from tunesmith_worker.rundir.errors import is_out_of_memory

from .check_context import SupervisedContext, Untyped
from .findings import Outcome, not_applicable
from .model_runs import (
    ModelRun,
    backbone_of,
    disabled_adapter,
    in_fp32,
    only_first_layers,
    patched_modules,
    perturbed_adapter,
    restored_state,
    run_batch,
    run_single_rows,
    stock_modules,
)
from .parity import (
    COARSE,
    EXACT,
    EXACT_GPU,
    Limits,
    check_adapter_acts,
    check_fresh_adapter,
    compare_16_bits,
    compare_rows,
    compare_with_stock,
    is_fresh,
)
from .sample_batch import SampleBatch, make_sample_batch

SECONDS = 20.0
"""Time limit in seconds for all forward and backward passes of the checks together.

Checks that have not begun before the time limit are skipped. In supervised runs, the adapter checks
come first, so the time limit never skips them.
"""
LAYERS = 8
"""Maximum number of layers in the comparison of kernels. Eight layers contain all types of layers,
because the types repeat after at most six layers."""
FP32_SHARE = 0.5
"""Share of the remaining free memory that fp32 weights and gradients may take."""
LEAST_CHANGE = {True: 1e-5, False: 1e-3}
"""A perturbed adapter must change a log-probability by at least this value. The key is True for
fp32, False for 16 bits."""
FRESH_LIMIT = {True: 1e-4, False: 0.1}
"""An untrained adapter may change log-probabilities by at most this value. The key is True for
fp32, False for 16 bits."""


class Numerics:
    """Results of all model runs on one sample batch."""

    def __init__(self, context: SupervisedContext, sample: SampleBatch) -> None:
        self.context, self.sample = context, sample
        self.began = time.perf_counter()
        self.fp32 = context.load_plan.precision == "fp32"
        config = context.model.config.get_text_config()
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        self.experts = any(getattr(config, name, None) for name in names)

    def outcomes(self) -> list[Outcome]:
        context = self.context
        with restored_state(context.model, context.trainer.args.device):
            outcomes = [] if context.full else self._check_adapter()
            with perturbed_adapter(context.model):
                return outcomes + self._compare()

    def _check_adapter(self) -> list[Outcome]:
        model = self.context.model
        with disabled_adapter(model):
            base = self._run(backward=False)
        outcomes = []
        if is_fresh(model):
            fresh = self._run(backward=False)
            outcomes.append(check_fresh_adapter(fresh, base, FRESH_LIMIT[self._exact]))
        else:
            outcomes.append(not_applicable("fresh_adapter", "the adapter was trained before"))
        with perturbed_adapter(model):
            perturbed = self._run(backward=True)
        trained = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
        if not self.sample.trains_attention:
            trained = [n for n in trained if ".q_proj." not in n and ".k_proj." not in n]
        least = LEAST_CHANGE[self._exact]
        acts = check_adapter_acts(perturbed, base, least, trained, experts=self.experts)
        return [acts, *outcomes]

    @property
    def _exact(self) -> bool:
        """True if the model computes in fp32, without int8 products."""
        return self.fp32 and self.context.recipe.quantization != "int8"

    def _compare(self) -> list[Outcome]:
        if self._late:
            return _skipped(f"the time limit of {SECONDS:.0f} s was reached")
        try:
            return self._compare_rows_and_kernels()
        except Exception as error:  # out-of-memory errors have several types
            if not is_out_of_memory(error):
                raise
        # Outside the except block, no traceback keeps the tensors in memory.
        # Training needs less memory than this comparison.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return _skipped("memory ran out")

    def _compare_rows_and_kernels(self) -> list[Outcome]:
        count = self._layers()
        with only_first_layers(self.context.model, count) if count else nullcontext():
            if self._exact or not count:
                return self._compare_directly(self._limits if self._exact else COARSE)
            return self._compare_in_fp32()

    def _compare_directly(self, limits: Limits) -> list[Outcome]:
        context, sample, trainer = self.context, self.sample, self.context.trainer
        ours = self._run(backward=True)
        rows = self._compare_rows(ours, limits)
        if context.patched is None:
            return [rows, _UNPATCHED]
        with stock_modules(context.patched):
            stock = run_batch(trainer, sample.padded, backward=True)
        precision = "fp32" if self.fp32 else "16 bits"
        return [rows, compare_with_stock(ours, stock, limits, computed_in=precision)]

    def _compare_in_fp32(self) -> list[Outcome]:
        """Compare our kernels with the stock model, in fp32 and in 16 bits.

        In 16 bits, the gradients of our kernels and of the stock model are each compared with the
        stock model's fp32 gradients."""
        context, sample, trainer = self.context, self.sample, self.context.trainer
        patched, limits = context.patched, self._limits
        ours_16 = self._run(backward=True) if patched else None
        with stock_modules(patched):
            stock_16 = run_batch(trainer, sample.padded, backward=True) if patched else None
            with in_fp32(context.model):
                if patched is None:
                    return [self._compare_rows(self._run(backward=True), limits), _UNPATCHED]
                stock = run_batch(trainer, sample.padded, backward=True)
                with patched_modules(patched):
                    ours = self._run(backward=True)
                    rows = self._compare_rows(ours, limits)
        assert ours_16 is not None
        assert stock_16 is not None
        in_32 = compare_with_stock(ours, stock, limits, computed_in="fp32")
        return [rows, compare_16_bits(ours_16, stock_16, stock, in_32)]

    def _compare_rows(self, together: ModelRun, limits: Limits) -> Outcome:
        alone = run_single_rows(self.context.trainer, self.sample.single_rows)
        return compare_rows(together, alone, limits, experts=self.experts)

    def _run(self, *, backward: bool) -> ModelRun:
        return run_batch(self.context.trainer, self.sample.training_layout, backward=backward)

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self.began > SECONDS

    @property
    def _limits(self) -> Limits:
        return EXACT_GPU if self.context.trainer.args.device.type == "cuda" else EXACT

    def _layers(self) -> int:
        """Return how many of the first layers to compare in fp32. 0 means that fp32 does not fit in
        memory; all layers are then compared in 16 bits."""
        model, planner = self.context.model, self.context.memory.planner
        free = planner.memory.free - planner.tuning.weights - planner.tuning.adapter
        layers = getattr(backbone_of(model), "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            return 0
        if self._exact:
            return min(LAYERS, len(layers))
        if self.context.recipe.quantization != "none" or has_whole_matrices(model):
            return 0
        count = min(LAYERS, len(layers))
        while count and fp32_bytes(model, layers, count) > FP32_SHARE * free:
            count //= 2
        return count


def fp32_bytes(model: Untyped, layers: torch.nn.ModuleList, count: int) -> int:
    """Return the bytes of the weights and of three sets of gradients in fp32, if the model has only
    its first `count` layers."""
    excluded = {id(p) for layer in layers[count:] for p in layer.parameters()}
    included = [p for p in model.parameters() if id(p) not in excluded]
    return sum(4 * p.numel() * (1 + 3 * p.requires_grad) for p in included)


def _skipped(why: str) -> list[Outcome]:
    names = ("rows_apart", "patched_equals_stock")
    return [Outcome(check=name, state="skipped", detail=why) for name in names]


def has_whole_matrices(model: Untyped) -> bool:
    """Return True if a whole embedding or head matrix is trained, not only rows of new tokens.

    The weights of a whole matrix are fp32, but the forward pass uses the base model's dtype
    (engine/model/embeddings/whole_matrices.py)."""
    return any(isinstance(module, peft.utils.ModulesToSaveWrapper) for module in model.modules())


_UNPATCHED = not_applicable("patched_equals_stock", "recipe.patches is 'off'")


def check_numerics(context: SupervisedContext) -> list[Outcome]:
    """Run `adapter_acts`, `fresh_adapter`, `rows_apart` and `patched_equals_stock`."""
    return Numerics(context, make_sample_batch(context)).outcomes()
