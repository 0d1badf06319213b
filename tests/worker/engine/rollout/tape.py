"""Recordings of decode steps without a GPU. A replay repeats the operators of one run on the same
tensors. Values from the host stay as they were at the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.worker.trainer.host_reads import HostReads, watched

Untyped = Any  # Any: torch's dispatch is not typed
Run = Callable[[], torch.Tensor]

REFUSAL = "operation not permitted when stream is capturing"


class Recording(TorchDispatchMode):
    """Recorder of a run's operators. At the end, `undo` restores all tensors that the run has
    changed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._operators: list[Untyped] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None
    ) -> Untyped:
        kwargs = kwargs or {}
        assert "lift_fresh" not in str(func), "a tensor made from the host's numbers"
        given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
        for one in func._schema.arguments:
            if one.alias_info is not None and one.alias_info.is_write:
                self._keep(given[one.name])
        result = func(*args, **kwargs)
        made = _places(result) - _places((args, kwargs))
        self._made |= made
        fresh = [one for one in _tensors(result) if _places(one) & made]
        self._operators.append((func, args, kwargs, result, fresh))  # keeps all tensors alive
        return result

    def _keep(self, written: torch.Tensor) -> None:
        place = written.untyped_storage().data_ptr()
        if place not in self._made and place not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(written.untyped_storage())
            self._before[place] = whole, whole.clone()

    def undo(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)

    def replay(self) -> None:
        """Repeat the operators; results go to the tensors of the recorded run."""
        now: dict[int, torch.Tensor] = {}

        def of_now(one: torch.Tensor) -> torch.Tensor:
            return now.get(id(one), one)

        for func, *given, result, _ in self._operators:
            args, kwargs = tree_map_only(torch.Tensor, of_now, given)
            again = _tensors(func(*args, **kwargs))
            now |= {id(one): new for one, new in zip(_tensors(result), again, strict=True)}
        for *_, fresh in self._operators:
            for one in fresh:
                one.copy_(now[id(one)])


def _tensors(result: Untyped) -> list[torch.Tensor]:
    return [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]


def _places(of: Untyped) -> set[int]:
    return {one.untyped_storage().data_ptr() for one in _tensors(of) if not one.is_mkldnn}


class Tape:
    """Recorder for a CPU."""

    def __init__(self) -> None:
        self.disabled_reason = ""
        self.recordings = 0
        self.reads = HostReads()

    def run(self, run: Run) -> torch.Tensor:
        return run()

    def record(self, run: Run) -> Run:
        self.recordings += 1
        with watched(self.reads), Recording() as recording:
            result = run()
        recording.undo()

        def replay() -> torch.Tensor:
            recording.replay()
            return result

        return replay


class Refusing(Tape):
    def __init__(self, error: type[RuntimeError] = RuntimeError) -> None:
        super().__init__()
        self.error = error(REFUSAL)

    def record(self, run: Run) -> Run:
        self.recordings += 1
        raise self.error
