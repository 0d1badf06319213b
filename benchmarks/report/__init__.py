"""Program that writes docs/reference/performance.md and its plots: `python -m
benchmarks.report`."""
