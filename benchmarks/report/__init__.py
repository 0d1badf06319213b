"""docs/reference/performance.md and its plots, made by `python -m benchmarks.report`."""
