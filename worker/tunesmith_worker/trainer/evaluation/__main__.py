"""Evaluation on demand: `python -m tunesmith_worker.trainer.evaluation FOLDER`.

FOLDER has spec.json (EvaluationSpec) and the data; the result is evaluation.json or failure.json.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.model.versions import check_versions
from tunesmith_worker.rundir.errors import RunError, failure_of, is_out_of_memory
from tunesmith_worker.rundir.evaluation_spec import FAILURE, EvaluationSpec
from tunesmith_worker.rundir.paths import RunDirectory, write_json
from tunesmith_worker.rundir.process import (
    default_environment,
    die_with_supervisor,
    exit_fast,
    keep_freed_memory,
    quick_imports,
)


def command(folder: Path) -> int:
    """Evaluate the models of `folder`, and return the exit status."""
    run = RunDirectory(folder)
    spec = EvaluationSpec.model_validate_json(run.spec.read_bytes())
    try:
        check_versions()
        with quick_imports():
            from .on_demand import evaluate
        write_json(run.evaluation, evaluate(spec, folder))
    except Exception as error:  # any model, data set or grader may fail here
        traceback.print_exc()
        write_json(folder / FAILURE, failure_of(_explained(error), folder))
        return 1
    return 0


def _explained(error: Exception) -> Exception:
    if not is_out_of_memory(error):
        return error
    return RunError(
        ErrorCode.OUT_OF_MEMORY,
        f"Out of memory: {str(error).partition(chr(10))[0] or type(error).__name__}",
        category=ErrorCategory.OUT_OF_MEMORY,
        hint="Use shorter rows, or a worker with more memory.",
    )


if __name__ == "__main__":
    die_with_supervisor()
    default_environment(os.environ)
    keep_freed_memory()
    exit_fast(command(Path(sys.argv[1])))
