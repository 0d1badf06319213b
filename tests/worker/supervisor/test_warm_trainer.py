"""The warm trainer: a run in it is the run that a fresh process makes, and one that cannot take a
run costs the job nothing but time.

Most tests have a stand-in with imports of its own; the protocol is the real one.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.service import alive, until
from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, losses, read_events
from tunesmith_schema import EventKind, Recipe, RunSpec
from tunesmith_worker.supervisor.child import trainer_process
from tunesmith_worker.supervisor.child.spawn import TrainerProgram
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.child.warm_trainer import WarmTrainer
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.settings import WorkerSettings
from tunesmith_worker.trainer import run
from tunesmith_worker.trainer.wait_for_run import ENGINE

STAND_IN = """
import json, os, pathlib, sys, time
from tunesmith_worker.rundir.hand_over import WARM
from tunesmith_worker.rundir.process import die_with_supervisor
from tunesmith_worker.trainer import wait_for_run
die_with_supervisor()
sys.path.append({folder!r})
wait_for_run.ENGINE = ("engine",)
told = {{"how": "fresh", "pid": os.getpid()}}
root = pathlib.Path(sys.argv[-1])
if sys.argv[-1] == WARM:
    taken = wait_for_run.wait_for_run()
    if taken is None:
        sys.exit(4)
    root = taken.run_dir
    told |= {{"how": "warm", "spawn": taken.waited.spawn, "imports": taken.waited.imports}}
print("running")
assert sys.stdin.read() == "" and os.getcwd() == str(root)
(root / "told.json").write_text(json.dumps(told))
{then}
"""
MakeLauncher = Callable[..., Launcher]


@pytest.fixture
def make_launcher(tmp_path: Path) -> Iterator[MakeLauncher]:
    """A launcher whose trainers import `engine` instead of torch, tell how they ran, and end."""
    made: list[Launcher] = []

    def make(engine: str = "", *, then: str = "", warm_trainer: bool = True) -> Launcher:
        (tmp_path / "engine.py").write_text(engine)
        python = tmp_path / "python"
        code = STAND_IN.format(folder=str(tmp_path), then=textwrap.dedent(then))
        python.write_text(f"#!{sys.executable}\n{code}")
        python.chmod(0o755)
        settings = WorkerSettings(
            data_dir=tmp_path, trainer_python=str(python), warm_trainer=warm_trainer
        )
        made.append(Launcher(settings))
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()


def warm_of(launcher: Launcher, *, ready: bool = True) -> WarmTrainer:
    launcher.keep_warm_trainer()
    warm = launcher._warm
    assert warm is not None
    if ready:
        until(warm.is_ready, 60)
    return warm


def ended(trainer: TrainerProcess) -> int:
    until(lambda: trainer.poll() is not None, 60)
    status = trainer.poll()
    assert status is not None
    return status


def run_of(launcher: Launcher, tmp_path: Path, name: str = "run") -> dict[str, float | str]:
    """What the trainer that had the run says of itself."""
    folder = tmp_path / name
    folder.mkdir()
    assert ended(launcher.launch(folder)) == 0
    told: dict[str, float | str] = json.loads((folder / "told.json").read_text())
    return told


def logged(folder: Path) -> list[str]:
    """Lines of the log without those of torch's profiler, which have times. It measures memory."""
    lines = (folder / "trainer.log").read_text().splitlines()
    return [line for line in lines if not line.startswith("USDT:") and "profil" not in line]


def test_a_run_in_a_warm_trainer_is_the_run_of_a_fresh_one(
    make_run: MakeRun, tmp_path: Path
) -> None:
    # `packing` is given, as measuring two layouts' speed may choose either.
    recipe = {"max_steps": 4, "packing": False, "lora": {"r": 4, "lora_dropout": 0.1}}
    launcher = Launcher(WorkerSettings(data_dir=tmp_path))
    launcher.keep_warm_trainer()
    fresh, warm = (make_run(QUESTIONS, recipe=recipe, name=name) for name in ("fresh", "warm"))
    trainer = TrainerProcess(fresh, TrainerProgram())
    try:
        assert ended(trainer) == 0
        until(warm_of(launcher).is_ready)
        assert ended(launcher.launch(warm)) == 0
    finally:
        trainer.kill()
        launcher.close()
    adapters = [
        {file.name: file.read_bytes() for file in (folder / "adapter").iterdir()}
        for folder in (fresh, warm)
    ]
    assert "adapter_model.safetensors" in adapters[0]
    assert adapters[0] == adapters[1]
    assert losses(fresh) == losses(warm)
    told = [
        [(e.kind, e.data.get("phase")) for e in read_events(folder)] for folder in (fresh, warm)
    ]
    assert told[0] == told[1]
    waited = {
        str(event.data["phase"]): event.data["seconds"]
        for event in read_events(warm)
        if event.kind is EventKind.PHASE
    }
    assert float(str(waited["import"])) < 0.5, "ENGINE lacks something heavy that a run imports"
    assert logged(fresh) == logged(warm)


def test_a_warm_trainer_imports_what_a_run_imports() -> None:
    tree = ast.parse(Path(run.__file__).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    imported = set()
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.ImportFrom):
            imported.add(f"tunesmith_worker.trainer.{node.module}" if node.level else node.module)
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    assert imported == set(ENGINE)


def test_importing_asks_no_driver_for_a_gpu() -> None:
    """A warm trainer holds nothing of a card, and no choice of one is made before the run."""
    code = """
    import torch
    from importlib import import_module
    from tunesmith_worker.rundir.process import quick_imports
    from tunesmith_worker.trainer.wait_for_run import ENGINE
    def refuse(*args, **kwargs): raise AssertionError("CUDA was asked")
    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        setattr(torch.cuda, name, refuse)
    with quick_imports():
        for name in ENGINE:
            import_module(name)
    assert not torch.cuda.is_initialized()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=100)


def test_a_ready_warm_trainer_takes_one_run_and_no_other(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher()
    warm = warm_of(launcher)
    first, second = (run_of(launcher, tmp_path, name) for name in ("first", "second"))
    assert (first["how"], first["pid"]) == ("warm", warm.process.pid)
    assert first["imports"] == 0.0
    assert float(first["spawn"]) < 5.0
    assert second["how"] == "fresh"


def test_a_warm_trainer_that_still_imports_is_waited_for_and_the_wait_is_told(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher("import time; time.sleep(1.5)")
    warm = warm_of(launcher, ready=False)
    told = run_of(launcher, tmp_path)
    assert (told["how"], told["pid"]) == ("warm", warm.process.pid)
    assert float(told["imports"]) > 0.5


def test_what_imports_print_stands_at_the_beginning_of_the_runs_log(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher("import os; os.write(2, b'a warning\\n')")
    warm_of(launcher)
    assert run_of(launcher, tmp_path)["how"] == "warm"
    assert (tmp_path / "run" / "trainer.log").read_text() == "a warning\nrunning\n"


@pytest.mark.parametrize("engine", ["raise ImportError('torn')", "import os; os._exit(3)"])
def test_a_warm_trainer_that_fails_to_import_is_replaced_by_a_fresh_trainer(
    make_launcher: MakeLauncher, tmp_path: Path, engine: str
) -> None:
    launcher = make_launcher(engine)
    warm_of(launcher, ready=False)
    assert run_of(launcher, tmp_path)["how"] == "fresh"


def test_a_warm_trainer_that_died_while_it_waited_is_replaced(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher()
    os.kill(warm_of(launcher).process.pid, signal.SIGKILL)
    assert run_of(launcher, tmp_path)["how"] == "fresh"
    launcher.keep_warm_trainer()
    assert run_of(launcher, tmp_path, "next")["how"] == "warm"


def test_a_warm_trainer_that_somebody_stopped_goes_on(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher()
    os.kill(warm_of(launcher).process.pid, signal.SIGSTOP)
    assert run_of(launcher, tmp_path)["how"] == "warm"


def test_a_warm_trainer_that_hangs_is_killed_and_a_fresh_trainer_started(
    make_launcher: MakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "IMPORT_SECONDS", 0.5)
    launcher = make_launcher("import time; time.sleep(100)")
    warm = warm_of(launcher, ready=False)
    assert run_of(launcher, tmp_path)["how"] == "fresh"
    assert not alive(warm.process.pid)


@pytest.mark.parametrize(("quantization", "how"), [("none", "warm"), ("nf4", "fresh")])
def test_a_warm_trainer_leaves_a_quantised_model_to_a_fresh_trainer(
    make_launcher: MakeLauncher, tmp_path: Path, quantization: str, how: str
) -> None:
    """peft looks for bitsandbytes once, when it is imported, and a warm trainer hides it."""
    launcher = make_launcher()
    warm_of(launcher)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.jsonl").touch()
    spec = RunSpec(
        job_id="ftjob-1",
        attempt=1,
        model="acme/tiny",
        model_path="acme/tiny",
        training_file="train.jsonl",
        recipe=Recipe.model_validate({"quantization": quantization}),
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    assert ended(launcher.launch(folder)) == 0
    assert json.loads((folder / "told.json").read_text())["how"] == how


@pytest.mark.parametrize("change", ["write", "replace", "remove"])
def test_a_warm_trainer_whose_program_changed_on_disk_is_not_used(
    make_launcher: MakeLauncher, tmp_path: Path, change: str
) -> None:
    launcher = make_launcher()
    warm_of(launcher)
    engine = tmp_path / "engine.py"
    if change == "write":
        engine.write_text("")
    elif change == "replace":  # as installers do, with the time that the package says
        new = tmp_path / "new.py"
        new.write_text("")
        os.utime(new, (0, 0))
        new.replace(engine)
    else:
        engine.unlink()
    told = run_of(launcher, tmp_path)
    assert told["how"] == "fresh"


def test_a_trainer_asked_to_stop_before_its_warm_trainer_took_the_run_is_not_replaced(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher("import time; time.sleep(100)")
    warm_of(launcher, ready=False)
    trainer = launcher.launch(tmp_path)
    trainer.ask_to_stop()
    assert ended(trainer) == -signal.SIGTERM
    assert not (tmp_path / "told.json").exists()


def test_a_paused_trainer_is_not_taken_for_one_that_hangs(
    make_launcher: MakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "IMPORT_SECONDS", 60.0)
    launcher = make_launcher("import time; time.sleep(1)")
    warm_of(launcher, ready=False)
    trainer = launcher.launch(tmp_path)
    trainer.pause()
    monkeypatch.setattr(trainer, "_warm_deadline", time.monotonic() - 1)
    assert trainer.poll() is None
    trainer.resume()
    assert ended(trainer) == 0
    assert json.loads((tmp_path / "told.json").read_text())["how"] == "warm"


def test_what_the_trainer_of_a_warm_trainer_starts_is_killed_with_it(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher(
        then="""
        import subprocess
        child = subprocess.Popen(["sleep", "100"])
        (root / "child").write_text(str(child.pid))
        time.sleep(100)
        """
    )
    warm_of(launcher)
    trainer = launcher.launch(tmp_path)
    pid = int(until(lambda: trainer.poll() is None and _content(tmp_path / "child")))
    trainer.kill()
    until(lambda: not alive(pid), 5)


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_without_the_setting_there_is_no_warm_trainer(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    launcher = make_launcher(warm_trainer=False)
    launcher.keep_warm_trainer()
    assert launcher._warm is None
    assert run_of(launcher, tmp_path)["how"] == "fresh"


@pytest.mark.parametrize("ready", [True, False])
def test_kill_9_of_the_supervisor_leaves_no_warm_trainer(
    make_launcher: MakeLauncher, tmp_path: Path, ready: bool
) -> None:
    make_launcher("" if ready else "import time; time.sleep(100)")
    code = f"""
    import sys, time
    from pathlib import Path
    from tunesmith_worker.supervisor.launcher import Launcher
    from tunesmith_worker.supervisor.settings import WorkerSettings
    folder = Path({str(tmp_path)!r})
    launcher = Launcher(WorkerSettings(data_dir=folder, trainer_python=str(folder / "python")))
    launcher.keep_warm_trainer()
    while {ready} and not launcher._warm.is_ready():
        time.sleep(0.01)
    print(launcher._warm.process.pid, flush=True)
    time.sleep(100)
    """
    supervisor = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        warm = int(supervisor.stdout.readline())
    assert alive(warm)
    supervisor.kill()
    supervisor.wait()
    until(lambda: not alive(warm), 10)
