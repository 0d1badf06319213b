"""The checks of a reinforcement run, and the passes that its rollouts are held to.

Where the weights are 16-bit, what is drawn and what is trained are compared in fp32
(docs/explanation/self-check.md), and besides held to stock's own distance from fp32.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from tunesmith_worker.engine.rollout.fold import UnfoldError
from tunesmith_worker.rundir.errors import is_out_of_memory

from .check_context import ReinforcementSubject, Row
from .checks import Checks, check_directory
from .findings import Outcome, judged, not_applicable
from .model_runs import (
    Pass,
    adapter_moved,
    adapter_off,
    backbone_of,
    first_layers,
    in_fp32,
    ours_again,
    stock,
    undisturbed,
)
from .numerics import FP32_SHARE, LAYERS, SECONDS, fp32_bytes, has_whole_matrices
from .parameters import check_embeddings, check_optimizer, check_trained_parameters, check_weights
from .parity import (
    COARSE,
    EXACT,
    EXACT_GPU,
    Limits,
    acts,
    as_near_as_stock,
    is_fresh,
    patched_equals_stock,
    starts_from_base,
)
from .reference_scores import (
    NEW,
    Draws,
    draw,
    draw_alone,
    requests_of,
    stock_logits,
    stock_pass,
    stock_scores,
    trained,
    trained_pass,
)
from .rollout_parity import (
    cause_of,
    equals_stock,
    equals_training,
    fault,
    near_in_16_bits,
    rows_apart,
)
from .rollout_prompts import (
    check_ends,
    check_positions,
    check_prompts,
    check_requests,
    check_stop_tokens,
    judged_seen,
)
from .sampling_distribution import check_law
from .weight_sync import Following

_LEAST_CHANGE = {True: 1e-5, False: 1e-3}
_FRESH = {True: 1e-4, False: 0.1}
"""By whether it computes in fp32."""


def reinforcement_checks() -> Checks[ReinforcementSubject]:
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
        numeric=check_rollouts,
    )


def check_rollouts(subject: ReinforcementSubject) -> list[Outcome]:
    """What runs the model: kernels and adapter on rows of prompts and completions, and the engine
    against training and stock transformers. After a fault nothing further is judged."""
    return _Rollouts(subject).outcomes()


class _Rollouts:
    def __init__(self, subject: ReinforcementSubject) -> None:
        self.subject = subject
        self.began = time.perf_counter()
        self.exactly = (
            subject.load_plan.precision == "fp32" and subject.recipe.quantization != "int8"
        )
        self.prompts = subject.picked(NEW + 1)
        self.found: list[Outcome] = []

    def outcomes(self) -> list[Outcome]:
        if not self.prompts:
            why = "every prompt is longer than the length up to which the model's law is one"
            return [not_applicable("rollout_equals_stock", why)]
        try:
            with undisturbed(self.subject.model, self.subject.device):
                self._judge()
        except UnfoldError as error:
            return [*self.found, _weights_kept(str(error))]
        except Exception as error:  # out of memory comes as many types; others go on
            if not is_out_of_memory(error):
                raise
        else:
            return self.found
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        skipped = Outcome(check="rollouts", state="skipped", detail="memory ran out")
        return [*self.found, skipped]

    def _judge(self) -> None:
        subject, count = self.subject, self._layers()
        if self.exactly or not count:
            limits = self._limits if self.exactly else COARSE
            self._compare(limits)
            return
        with first_layers(subject.model, count):
            with adapter_moved(subject.model):
                draws = draw(subject, requests_of(subject, self.prompts))
                training, floor = trained(subject, draws), stock_scores(subject, draws)
                rows = [one.row for one in draws.rows]  # few tokens' rounding is a matter of luck
                ours, theirs = self._passes(rows)
                with _widened(subject):
                    truth = stock_scores(subject, draws)
                    exact = stock_pass(subject, rows)
            with _widened(subject):
                self._compare(self._limits)
        if not self._failed:
            self.found.append(near_in_16_bits(draws.policy, training, floor, truth))
            for place, one in enumerate(self.found):  # not there where time was used up
                if one.check == "patched_equals_stock":
                    self.found[place] = as_near_as_stock(ours, theirs, exact, one)

    def _compare(self, limits: Limits) -> None:
        """With one kind of rounding."""
        for part in (self._drawing, self._kernels, self._law_and_ends, self._following):
            part(limits)
            if self._failed:
                return
            if time.perf_counter() - self.began > SECONDS:
                late = f"{SECONDS:.0f} s were used up"
                self.found.append(Outcome(check="rollouts", state="skipped", detail=late))
                return

    def _drawing(self, limits: Limits) -> None:
        subject = self.subject
        with adapter_moved(subject.model):
            requests = requests_of(subject, self.prompts)
            before = _checksums(subject)
            self.draws = draws = draw(subject, requests)
            figures = getattr(subject.engine, "figures", None)
            self.found.append(judged_seen(requests, getattr(figures, "prefill_tokens", None)))
            changed = sum(a != b for a, b in zip(before, _checksums(subject), strict=True))
            self.found.append(_weights_kept(f"{changed} tensors changed" if changed else ""))
            if self._failed:
                return
            alone = draw_alone(subject, requests)
            self.found.append(rows_apart(draws, alone, limits))
            if self._failed:
                return
            self.logits = stock_logits(subject, [one.row for one in draws.rows])
            expected, training = draws.at(self.logits), trained(subject, draws)
            self.found.append(
                equals_stock(draws.policy, expected, limits, self._cause(draws.policy, limits))
            )
            cause = self._cause(training, limits, of="the trainer")
            self.found.append(equals_training(draws.policy, training, expected, limits, cause))

    def _cause(self, found: torch.Tensor, limits: Limits, of: str = "the engine") -> str:
        """Of a fault that there is, or nothing."""
        if equals_stock(found, self.draws.at(self.logits), limits, "").findings:
            return cause_of(self.subject, self.draws, found, self.logits, limits, of=of)
        return ""

    def _kernels(self, limits: Limits) -> None:
        """Gradients, and the adapter: as for supervised runs, on prompts and completions."""
        subject, rows = self.subject, self._short(self.draws)
        with adapter_moved(subject.model):
            ours, theirs = self._passes(rows)
        if not subject.full:
            self.found += self._adapter(ours, rows, limits)
        how = "fp32" if limits.single else "16 bits"
        self.found.append(patched_equals_stock(ours, theirs, limits, computed_in=how))

    def _adapter(self, moved: Pass, rows: Sequence[Row], limits: Limits) -> list[Outcome]:
        model, exactly = self.subject.model, limits.single
        with adapter_off(model):
            base = trained_pass(self.subject, rows, backward=False)
        names = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
        found = [acts(moved, base, _LEAST_CHANGE[exactly], names, experts=False)]
        if not is_fresh(model):
            why = "it has been trained before"
            return [*found, not_applicable("fresh_adapter", why)]
        fresh = trained_pass(self.subject, rows, backward=False)
        return [*found, starts_from_base(fresh, base, _FRESH[exactly])]

    def _law_and_ends(self, limits: Limits) -> None:
        subject = self.subject
        self.found.append(check_law(subject, self.draws, self.logits, limits))
        first = self.draws.rows[0]
        with adapter_moved(subject.model):
            self.found.append(check_ends(subject.engine, first.request, first.completion))

    def _following(self, limits: Limits) -> None:
        self.found.append(Following(self.subject, self.prompts[:2], limits).outcome())

    def _passes(self, rows: Sequence[Row]) -> tuple[Pass, Pass]:
        return trained_pass(self.subject, rows, backward=True), stock_pass(self.subject, rows)

    def _short(self, draws: Draws) -> list[Row]:
        """Of the two shortest prompts, one of them with a group."""
        few = set(self.prompts[:2])
        return [one.row for one in draws.rows if one.request.prompt_ids in few]

    @property
    def _failed(self) -> bool:
        return any(one.state == "failed" for one in self.found)

    @property
    def _limits(self) -> Limits:
        return EXACT_GPU if self.subject.device.type == "cuda" else EXACT

    def _layers(self) -> int:
        """How many layers to compare in fp32, with a merged copy beside; 0: fp32 cannot be had."""
        model, recipe = self.subject.model, self.subject.recipe
        if self.exactly or recipe.quantization != "none" or has_whole_matrices(model):
            return 0
        layers = backbone_of(model).layers
        count = min(LAYERS, len(layers))
        while count and 2 * fp32_bytes(model, layers, count) > FP32_SHARE * self.subject.free:
            count //= 2
        return count


@contextmanager
def _widened(subject: ReinforcementSubject) -> Iterator[None]:
    """Inside, the weights are the same numbers in fp32."""
    patched = subject.patched
    ours = nullcontext() if patched is None else ours_again(patched)
    with stock(patched), in_fp32(subject.model), ours:
        yield


def _weights_kept(wrong: str) -> Outcome:
    """`weights_kept`"""
    name = "weights_kept"
    findings = []
    if wrong:
        findings.append(
            fault(
                name,
                f"a rollout did not leave the weights as they were, bit for bit (tolerance: 0; an "
                f"adapter was folded in and not out again): {wrong}.",
            )
        )
    return judged(name, findings, "bit for bit")


def _checksums(subject: ReinforcementSubject) -> list[int]:
    """Of the bits of every tensor, as a sum."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [*subject.model.parameters(), *subject.model.buffers()]
    with torch.no_grad():
        sums = [
            one.detach().view(kinds[one.element_size()]).sum(dtype=torch.int64).to("cpu")
            for one in tensors
        ]
    return [int(one) for one in sums]
