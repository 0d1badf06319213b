"""Child process for tests of benchmarks/gpu/children.py. Each case does what its name says."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    cases = sys.argv[sys.argv.index("--cases") + 1 :] if "--cases" in sys.argv else ["a", "b"]
    if "broken-import" in cases:
        raise ImportError(f"no such thing in {os.getcwd()}")
    sys.stdin.readline()
    say({"facts": {"device": "none"}, "cases": cases})
    for case in cases:
        if case == "dies":
            sys.stderr.write("illegal memory access\n")
            os._exit(7)
        if case == "hangs":
            time.sleep(60)
        say({"case": case, "error": "ValueError: planted"} if case == "raises" else ok(case))


def ok(case: str) -> dict[str, object]:
    return {"case": case, "result": {"passed": case != "wrong"}}


def say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
