"""Completions and the prompts they answer: which rows make up a group, and whether its prompt
should go through the model once for all of them or once for each.

With a prompt of P tokens and G completions of R tokens each, sharing computes P + G R tokens in
place of G (P + R). Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Group",
    "GroupLayout",
    "GroupSizes",
    "LayoutChoice",
    "RowOfGroup",
    "choose_layout",
    "groups_of",
    "sizes_of",
    "token_ratio",
]

GroupLayout = Literal["shared", "plain"]
"""`shared`: a prompt once, then its completions. `plain`: each completion after a prompt of its
own."""

SHARING_PAYS = 1.05
"""From this token ratio on (docs/contributing/log); below it, both take the same time."""


@dataclass(frozen=True, slots=True)
class RowOfGroup:
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    left_out: bool = False
    """Not computed; its scores are zero. For rows whose loss is masked or whose group teaches
    nothing."""

    @property
    def scored(self) -> bool:
        return bool(self.completion_ids) and not self.left_out


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with the same prompt."""

    prompt_ids: tuple[int, ...]
    members: tuple[int, ...]
    """Their numbers among all rows; at least one."""


@dataclass(frozen=True, slots=True)
class GroupSizes:
    prompt: int
    """Tokens."""
    completions: tuple[int, ...]
    """Tokens of each, at least 1."""

    def tokens(self, layout: GroupLayout) -> int:
        """That go through the model. A completion's last one does not: it scores nothing."""
        own = sum(self.completions) - len(self.completions)
        return own + self.prompt * (1 if layout == "shared" else len(self.completions))


def groups_of(rows: Sequence[RowOfGroup]) -> list[Group]:
    """By prompt, wherever its rows stand, in the order of their first; rows that are not scored are
    in none. Raises ValueError for a prompt without tokens."""
    members: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(rows):
        if not row.prompt_ids:
            raise ValueError(f"row {number} has an empty prompt: nothing precedes its first token")
        if row.scored:
            members.setdefault(row.prompt_ids, []).append(number)
    return [Group(prompt, tuple(numbers)) for prompt, numbers in members.items()]


def sizes_of(rows: Sequence[RowOfGroup]) -> list[GroupSizes]:
    return [
        GroupSizes(len(group.prompt_ids), tuple(len(rows[i].completion_ids) for i in group.members))
        for group in groups_of(rows)
    ]


def token_ratio(groups: Sequence[GroupSizes]) -> float:
    """Tokens that plain rows put through the model for one with shared prompts; 1 of nothing."""
    plain, shared = (sum(one.tokens(kind) for one in groups) for kind in ("plain", "shared"))
    return plain / shared if shared else 1.0


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    layout: GroupLayout
    reason: str


def choose_layout(groups: Sequence[GroupSizes]) -> LayoutChoice:
    """By the token ratio."""
    ratio = token_ratio(groups)
    layout: GroupLayout = "shared" if ratio >= SHARING_PAYS else "plain"
    relation = "at least" if layout == "shared" else "less than"
    return LayoutChoice(
        layout,
        f"plain rows put {ratio:.2f} times as many tokens through the model as shared prompts, "
        f"{relation} the {SHARING_PAYS:g} from which sharing pays",
    )
