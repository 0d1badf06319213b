"""Reader of docker/Dockerfile. Returns the stages and the settings of their images."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    base: str
    """Name of a stage or an image."""
    lines: list[tuple[str, str]]
    """Instructions with their arguments, in order."""

    def of(self, instruction: str) -> list[str]:
        return [value for name, value in self.lines if name == instruction]


def read_stages(path: Path = DOCKERFILE) -> dict[str, Stage]:
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        if not line.strip():
            continue
        instruction, value = line.split(maxsplit=1)
        if instruction == "FROM":
            base, _, name = value.split()
            base = arguments.get(base.removeprefix("${").removesuffix("}"), base)
            stages[name] = Stage(name=name, base=base, lines=[])
        elif instruction == "ARG" and not stages:  # before the first stage: for FROM
            name, _, default = value.partition("=")
            arguments[name] = default
        else:
            list(stages.values())[-1].lines.append((instruction, value))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """Return the ancestors of a stage in this file, oldest first, then the stage itself."""
    stage = stages[name]
    return [*(lineage(stages, stage.base) if stage.base in stages else []), stage]


def last(stages: dict[str, Stage], name: str, instruction: str) -> str:
    """Return the effective value in the image, from the last such line of the stage and its
    ancestors."""
    return [value for stage in lineage(stages, name) for value in stage.of(instruction)][-1]


def argv(stages: dict[str, Stage], name: str, instruction: str) -> list[str]:
    """Return the words of ENTRYPOINT or CMD. The shell form is not valid JSON and is rejected."""
    parts: list[str] = json.loads(last(stages, name, instruction))
    return parts


def environment(stages: dict[str, Stage], name: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for stage in lineage(stages, name):
        for line in stage.of("ENV"):
            values |= dict(part.split("=", 1) for part in re.split(r"\s+", line.strip()))
    return values
