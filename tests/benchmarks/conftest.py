"""`benchmarks.gpu` hides bitsandbytes from what its process imports later (process.quick_imports):
tests/worker, collected after these tests, would not find it."""

import bitsandbytes  # noqa: F401  # for its effect on sys.modules
