"""Checks of a reinforcement run, and the order of its rollout checks.

With 16-bit weights, rollouts and training are compared in fp32 (docs/explanation/self-check.md). In
16 bits, the log-probs of rollouts and of training are both compared with those of the stock model
in fp32.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, cycle, islice

import torch

from tunesmith_worker.engine.rollout.fold import UnfoldError
from tunesmith_worker.rundir.errors import is_out_of_memory

from .check_context import PromptAndCompletion, ReinforcementContext
from .checks import Checks, check_directory
from .findings import Outcome, make_outcome, not_applicable
from .model_runs import (
    ModelRun,
    backbone_of,
    disabled_adapter,
    in_fp32,
    only_first_layers,
    patched_modules,
    perturbed_adapter,
    restored_state,
    stock_modules,
)
from .numerics import (
    FP32_SHARE,
    FRESH_LIMIT,
    LAYERS,
    LEAST_CHANGE,
    SECONDS,
    fp32_bytes,
    has_whole_matrices,
)
from .parameters import check_embeddings, check_optimizer, check_trained_parameters, check_weights
from .parity import (
    COARSE,
    EXACT,
    EXACT_GPU,
    Limits,
    check_adapter_acts,
    check_fresh_adapter,
    compare_16_bits,
    compare_with_stock,
    is_fresh,
)
from .reference_scores import (
    NEW_TOKENS,
    Generated,
    generate,
    generate_single_prompts,
    make_requests,
    stock_logits,
    stock_run,
    stock_scores,
    training_run,
    training_scores,
)
from .rollout_parity import (
    check_equals_stock,
    check_equals_training,
    check_in_16_bits,
    compare_rows,
    fault,
    find_cause,
)
from .rollout_prompts import (
    check_ends,
    check_positions,
    check_prompts,
    check_prompts_seen,
    check_requests,
    check_stop_tokens,
)
from .row_lengths import longest_row
from .sampling_distribution import check_sampling_distribution
from .weight_sync import WeightSyncCheck

ENGINE_CHECKS = frozenset(
    {
        "prompts_seen",
        "rollout_rows_apart",
        "rollout_equals_stock",
        "rollout_in_16_bits",
        "sampling_distribution",
        "completions_end",
        "rollout_follows_weights",
    }
)
"""Checks that fail only because of the engine. After such a failure, another engine may pass the
check.

The check `weights_kept` is not in this set. `weights_kept` fails if the engine damaged the model's
weights, and another engine would use the same damaged weights.
"""


def reinforcement_checks(
    fall_back: Callable[[str], bool] = lambda why: False,
) -> Checks[ReinforcementContext]:
    """`fall_back`: function that replaces the engine in the context if the recipe allows another
    engine.

    `fall_back` receives the fault, and returns False if no other engine is allowed.
    """
    return Checks(
        cheap=(
            check_prompts,
            check_requests,
            check_stop_tokens,
            check_trained_parameters,
            check_optimizer,
            check_weights,
            check_embeddings,
            check_positions,
            check_directory,
        ),
        numeric=partial(check_engines, fall_back=fall_back),
    )


def check_engines(context: ReinforcementContext, fall_back: Callable[[str], bool]) -> list[Outcome]:
    """Check rollouts; if the engine has a fault, check again with the next engine."""
    while True:
        outcomes = check_rollouts(context)
        failed = [outcome for outcome in outcomes if outcome.state == "failed"]
        if not failed or not all(outcome.check in ENGINE_CHECKS for outcome in failed):
            return outcomes
        faults = [finding for outcome in failed for finding in outcome.findings]
        if not fall_back(" ".join(f"{fault.check}: {fault.message}" for fault in faults)):
            return outcomes


def check_rollouts(context: ReinforcementContext) -> list[Outcome]:
    """Compare engine, trainer and stock transformers on the same rows.

    After the first failed check, no further check runs.
    """
    return _RolloutChecks(context).run()


class _RolloutChecks:
    def __init__(self, context: ReinforcementContext) -> None:
        self.context = context
        self.began = time.perf_counter()
        self.exact = context.load_plan.precision == "fp32" and context.recipe.quantization != "int8"
        self.prompts = context.select_prompts(NEW_TOKENS + 1)
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        if not self.prompts:
            why = "all prompts exceed the length at which the model's position encoding changes"
            return [not_applicable("rollout_equals_stock", why)]
        try:
            with restored_state(self.context.model, self.context.device):
                self._run()
        except UnfoldError as error:
            return [*self.outcomes, _check_weights_kept(str(error))]
        except Exception as error:  # out-of-memory errors have several types
            if not is_out_of_memory(error):
                raise
        else:
            return self.outcomes
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        skipped = Outcome(check="rollouts", state="skipped", detail="memory ran out")
        return [*self.outcomes, skipped]

    def _run(self) -> None:
        context, count = self.context, self._layers()
        if self.exact or not count:
            limits = self._limits if self.exact else COARSE
            self._compare(limits)
            return
        with only_first_layers(context.model, count):
            with perturbed_adapter(context.model):
                generated = generate(context, make_requests(context, self.prompts))
                training = training_scores(context, generated)
                floor = stock_scores(context, generated)
                # All rows are used, because rounding errors of a few tokens vary too much.
                rows = [*(row.row for row in generated.rows), *self._long_rows()]
                ours, stock = self._runs(rows)
                with _weights_in_fp32(context):
                    truth = stock_scores(context, generated)
                    truth_run = stock_run(context, rows)
            with _weights_in_fp32(context):
                self._compare(self._limits)
        if not self._failed:
            self.outcomes.append(check_in_16_bits(generated.policy, training, floor, truth))
            for place, outcome in enumerate(self.outcomes):  # without skipped checks
                if outcome.check == "patched_equals_stock":
                    self.outcomes[place] = compare_16_bits(ours, stock, truth_run, outcome)

    def _compare(self, limits: Limits) -> None:
        for part in (
            self._check_generation,
            self._check_kernels,
            self._check_sampling_and_ends,
            self._check_weight_sync,
        ):
            part(limits)
            if self._failed:
                return
            if time.perf_counter() - self.began > SECONDS:
                late = f"the time limit of {SECONDS:.0f} s was reached"
                self.outcomes.append(Outcome(check="rollouts", state="skipped", detail=late))
                return

    def _check_generation(self, limits: Limits) -> None:
        context = self.context
        with perturbed_adapter(context.model):
            requests = make_requests(context, self.prompts)
            before = _checksums(context)
            self.generated = generated = generate(context, requests)
            figures = getattr(context.engine, "figures", None)
            seen = getattr(figures, "prefill_tokens", None)
            self.outcomes.append(check_prompts_seen(requests, seen))
            changed = sum(a != b for a, b in zip(before, _checksums(context), strict=True))
            fault_text = f"{changed} tensors changed" if changed else ""
            self.outcomes.append(_check_weights_kept(fault_text))
            if self._failed:
                return
            alone = generate_single_prompts(context, requests)
            self.outcomes.append(compare_rows(generated, alone, limits))
            if self._failed:
                return
            self.logits = stock_logits(context, [row.row for row in generated.rows])
            expected = generated.log_probs_at(self.logits)
            training = training_scores(context, generated)
            cause = self._cause(generated.policy, limits)
            self.outcomes.append(check_equals_stock(generated.policy, expected, limits, cause))
            cause = self._cause(training, limits, source="the trainer")
            self.outcomes.append(
                check_equals_training(generated.policy, training, expected, limits, cause)
            )

    def _cause(self, scores: torch.Tensor, limits: Limits, source: str = "the engine") -> str:
        expected = self.generated.log_probs_at(self.logits)
        if check_equals_stock(scores, expected, limits, "").findings:
            return find_cause(
                self.context, self.generated, scores, self.logits, limits, source=source
            )
        return ""

    def _check_kernels(self, limits: Limits) -> None:
        context, rows = self.context, self._short_rows(self.generated)
        with perturbed_adapter(context.model):
            ours, stock = self._runs(rows)
        if not context.full:
            self.outcomes += self._check_adapter(ours, rows, limits)
        precision = "fp32" if limits.single else "16 bits"
        self.outcomes.append(compare_with_stock(ours, stock, limits, computed_in=precision))

    def _check_adapter(
        self, perturbed: ModelRun, rows: Sequence[PromptAndCompletion], limits: Limits
    ) -> list[Outcome]:
        model, exact = self.context.model, limits.single
        with disabled_adapter(model):
            base = training_run(self.context, rows, backward=False)
        names = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
        outcomes = [check_adapter_acts(perturbed, base, LEAST_CHANGE[exact], names, experts=False)]
        if not is_fresh(model):
            return [*outcomes, not_applicable("fresh_adapter", "the adapter was trained before")]
        fresh = training_run(self.context, rows, backward=False)
        return [*outcomes, check_fresh_adapter(fresh, base, FRESH_LIMIT[exact])]

    def _check_sampling_and_ends(self, limits: Limits) -> None:
        context = self.context
        self.outcomes.append(
            check_sampling_distribution(context, self.generated, self.logits, limits)
        )
        first = self.generated.rows[0]
        with perturbed_adapter(context.model):
            self.outcomes.append(check_ends(context.engine, first.request, first.completion))

    def _check_weight_sync(self, limits: Limits) -> None:
        self.outcomes.append(WeightSyncCheck(self.context, self.prompts[:2], limits).outcome())

    def _runs(self, rows: Sequence[PromptAndCompletion]) -> tuple[ModelRun, ModelRun]:
        return training_run(self.context, rows, backward=True), stock_run(self.context, rows)

    def _short_rows(self, generated: Generated) -> list[PromptAndCompletion]:
        """Return the completions of the two shortest prompts, and two long rows.

        At least one of the two shortest prompts has several completions.
        """
        shortest = set(self.prompts[:2])
        rows = [row.row for row in generated.rows if row.request.prompt_ids in shortest]
        return [*rows, *self._long_rows()]

    def _long_rows(self) -> list[PromptAndCompletion]:
        """Return two completions of one long prompt, which consists of repetitions of the run's
        prompts.
        """
        context = self.context
        parts = [prompt.prompt_ids for prompt in context.prompts]
        dtype = torch.float32 if context.load_plan.precision == "fp32" else torch.bfloat16
        tokens = longest_row(
            context.model.config, max(map(len, parts)), dtype, context.device, more=NEW_TOKENS
        )
        ids = tuple(islice(cycle(chain.from_iterable(parts)), tokens + NEW_TOKENS))
        prompt, completion = ids[:tokens], ids[tokens:]
        return [(prompt, completion), (prompt, completion[: NEW_TOKENS // 2])]

    @property
    def _failed(self) -> bool:
        return any(outcome.state == "failed" for outcome in self.outcomes)

    @property
    def _limits(self) -> Limits:
        return EXACT_GPU if self.context.device.type == "cuda" else EXACT

    def _layers(self) -> int:
        """Return how many of the first layers to compare in fp32. The compared layers must fit in
        memory twice: as trained, and with the adapter merged.

        0 means that fp32 does not fit in memory, or that the engine keeps 16 bits."""
        model, recipe = self.context.model, self.context.recipe
        if self.exact or recipe.quantization != "none" or has_whole_matrices(model):
            return 0
        if not self.context.engine.follows_dtype:
            return 0
        layers = getattr(backbone_of(model), "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            return 0
        count = min(LAYERS, len(layers))
        while count and 2 * fp32_bytes(model, layers, count) > FP32_SHARE * self.context.free:
            count //= 2
        return count


@contextmanager
def _weights_in_fp32(context: ReinforcementContext) -> Iterator[None]:
    """Within this block, convert the weights to fp32."""
    patched = context.patched
    ours = nullcontext() if patched is None else patched_modules(patched)
    with stock_modules(patched), in_fp32(context.model), ours:
        yield


def _check_weights_kept(fault_text: str) -> Outcome:
    """Return the outcome of `weights_kept`; `fault_text` is empty if the check passed."""
    name = "weights_kept"
    findings = []
    if fault_text:
        findings.append(
            fault(
                name,
                "a rollout changed the weights, because merging the adapter was not undone "
                f"exactly: {fault_text} (tolerance: 0).",
            )
        )
    return make_outcome(name, findings, "a rollout changed no bit of the weights")


def _checksums(context: ReinforcementContext) -> list[int]:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [*context.model.parameters(), *context.model.buffers()]
    with torch.no_grad():
        sums = [
            tensor.detach().view(kinds[tensor.element_size()]).sum(dtype=torch.int64).to("cpu")
            for tensor in tensors
        ]
    return [int(value) for value in sums]
