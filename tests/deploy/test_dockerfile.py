"""docker/Dockerfile and .dockerignore: content and user of the images."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tunesmith._cli.server_and_worker import COMMANDS
from tunesmith_worker.__main__ import main as worker_main

from .dockerfile import DOCKERFILE, ROOT, argv, last, lineage, read_stages

STAGES = read_stages()
IMAGES = ("server", "worker-cpu", "worker-cuda")
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is installed on Linux x86-64")
def test_the_linter_finds_nothing() -> None:
    found = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_somebody_without_rights(image: str) -> None:
    user, group = last(STAGES, image, "USER").split(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    # No RUN follows: it would run as this user.
    instructions = [instruction for instruction, _ in STAGES[image].lines]
    assert "RUN" not in instructions[instructions.index("USER") :]
    made = [value for stage in lineage(STAGES, image) for value in stage.of("RUN")]
    assert any(f"--uid {user} " in value and "-m 0700 -o tunesmith" in value for value in made)


@pytest.mark.parametrize(
    ("image", "packages"),
    [
        ("server", {"tini"}),
        ("worker-cpu", {"tini"}),
        ("worker-cuda", {"tini", "gcc", "libc6-dev"}),
    ],
)
def test_only_the_cuda_image_has_a_compiler(image: str, packages: set[str]) -> None:
    lines = " ; ".join(value for stage in lineage(STAGES, image) for value in stage.of("RUN"))
    found = re.findall(r"apt-get install -y --no-install-recommends ([^&;]+)", lines)
    assert lines.count("apt-get install") == len(found)
    assert {name for part in found for name in part.split()} == packages
    assert ("Python.h" in lines) == ("gcc" in packages)


@pytest.mark.parametrize("image", IMAGES)
def test_signals_reach_the_program_and_the_program_exists(image: str) -> None:
    assert argv(STAGES, image, "ENTRYPOINT") == ["tini", "--"]
    assert last(STAGES, image, "STOPSIGNAL") == "SIGTERM"
    program, verb, *arguments = argv(STAGES, image, "CMD")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert program in project["scripts"]
    assert verb in COMMANDS
    if verb == "worker":
        with pytest.raises(SystemExit) as asked:  # the arguments are valid: --help is reached
            worker_main([verb, *arguments, "--help"])
        assert asked.value.code == 0


def test_every_image_is_named_to_the_last_digit() -> None:
    foreign = {stage.base for stage in STAGES.values()} - set(STAGES)
    assert foreign
    for image in foreign:
        assert re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+-\w+-\w+", image), image


def test_packages_come_with_hashes_and_from_a_cache() -> None:
    lines = [
        value for stage in STAGES.values() for value in stage.of("RUN") if "pip install" in value
    ]
    assert len(lines) == 7
    for line in lines:
        for command in line.split("pip install")[1:]:
            if "*.whl" in command:  # our wheel, from its own stage
                assert "--no-index" in command
                assert "--no-deps" in command
                continue
            assert "--mount=type=cache,target=/root/.cache/pip" in line
            # Another index has other files: their hash is given by who names the index.
            assert "--require-hashes" in command or "--index-url" in command, command


@pytest.mark.parametrize("extra", ["server", "worker", "worker-cuda", "wheel"])
def test_each_package_of_an_image_is_the_pinned_one_and_has_hashes(extra: str) -> None:
    """docker/lock.sh writes the files. Changing a version in the constraints alone is an error."""
    constraints = "constraints-gpu.txt" if extra == "worker-cuda" else "constraints.txt"
    pins = dict(
        line.split("==")
        for line in (ROOT / constraints).read_text().splitlines()
        if line and not line.startswith("#")
    )
    pins = {_normal(name): version for name, version in pins.items()}
    text = (ROOT / "docker" / "requirements" / f"{extra}.txt").read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    locked = {}
    for block in blocks:
        found = re.match(r"([\w.-]+)==([^ ;]+)", block)
        assert found, block
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), found[1]
        locked[_normal(found[1])] = found[2]
    different = {
        name: version for name, version in locked.items() if pins.get(name, version) != version
    }
    assert different == {}, "run docker/lock.sh"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = {
        "wheel": ["build", "hatchling"],
        "server": project["dependencies"] + extras["server"],
        "worker": project["dependencies"] + extras["worker"] + extras["trainer"],
        "worker-cuda": extras["worker"] + extras["trainer"] + extras["vllm"],
    }[extra]
    direct = [line for line in direct if not line.startswith("tunesmith[")]
    names = {_normal(re.split(r"[\s\[<>=!;~]", line)[0]) for line in direct}
    assert names <= set(locked), "run docker/lock.sh"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_cpu_index_replaces_torch_and_its_cuda_libraries_and_nothing_else(tmp_path: Path) -> None:
    [line] = [value for value in STAGES["worker-packages"].of("RUN") if "TORCH_INDEX" in value]
    line = re.sub(r"--mount=\S+\s+", "", line).replace("/requirements/", f"{tmp_path}/")
    line = line.replace("/opt/tunesmith/bin/pip", "echo")
    locked = (ROOT / "docker" / "requirements" / "worker.txt").read_text()
    (tmp_path / "worker.txt").write_text(locked)
    environment = {
        "PATH": "/usr/bin:/bin",
        "TORCH_INDEX": "https://x.example",
        "TORCH_SHA256": "0" * 64,
    }
    subprocess.run(["/bin/sh", "-ec", line], env=environment, check=True, capture_output=True)
    version = re.search(r"^torch==(\S+)", locked, re.MULTILINE)
    assert version
    torch = (tmp_path / "torch.txt").read_text().strip()
    assert torch == f"torch=={version[1]} --hash=sha256:{'0' * 64}"
    rest = (tmp_path / "rest.txt").read_text()
    packages = set(re.findall(r"^([\w.-]+)==", locked, re.MULTILINE))
    gone = packages - set(re.findall(r"^([\w.-]+)==", rest, re.MULTILINE))
    assert {"torch", "triton"} < gone
    assert {name for name in gone if not name.startswith(("nvidia-", "cuda-"))} == {
        "torch",
        "triton",
    }
    assert all("==" in line or "--hash=" in line for line in rest.splitlines())


def test_what_is_copied_exists_and_passes_the_ignore_file() -> None:
    sources = {
        source
        for stage in STAGES.values()
        for value in stage.of("COPY")
        if "--from=" not in value
        for source in value.split()[:-1]
    }
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = wheel["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} < sources


def test_secrets_data_and_environments_do_not_reach_the_builder() -> None:
    for name in (".env", "docker/.env", ".git", ".venv", ".tunesmith", "demo-output", "tests"):
        assert ignored(name), name


def ignored(name: str) -> bool:
    """Return True if .dockerignore excludes the path: the last matching pattern decides."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        path = Path(name)
        if any(fnmatch.fnmatch(str(part), pattern) for part in (path, *path.parents[:-1])):
            verdict = not line.startswith("!")
    return verdict
