"""docs/performance.md and its plots from benchmarks/results/: `python -m benchmarks.report`."""
