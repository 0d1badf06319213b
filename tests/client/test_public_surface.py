"""Public names of `import tunesmith`, and the modules that it must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import tunesmith


def test_the_public_surface_is_exactly_all() -> None:
    public = {
        name
        for name, value in vars(tunesmith).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(tunesmith.__all__) - {"__version__"}


def test_every_module_but_the_command_is_private() -> None:
    folder = Path(tunesmith.__file__).parent
    public = {path.name for path in folder.glob("*") if not path.name.startswith("_")}
    assert public == {"cli.py", "py.typed"}


def test_every_error_is_exported_and_has_the_common_base() -> None:
    from tunesmith._http import errors

    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and name.endswith("Error")
        if value.__module__ == errors.__name__
    }
    assert classes <= set(tunesmith.__all__)
    assert all(issubclass(vars(errors)[name], tunesmith.TunesmithError) for name in classes)


def test_importing_the_sdk_imports_neither_torch_nor_servers_nor_rich() -> None:
    program = (
        # httpx brings rich along for its own command wherever rich is installed.
        "import sys, httpx\n"
        "before = set(sys.modules)\n"
        "import tunesmith\n"
        "heavy = {'torch', 'fastapi', 'celery', 'sqlalchemy', 'rich', 'typer',"
        " 'tunesmith_server', 'tunesmith_worker', 'tunesmith_kernels'}\n"
        "found = heavy & (set(sys.modules) - before)\n"
        "sys.exit(f'imported: {found}' if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
