"""Benchmarks of our kernels and trainer on a GPU: `python -m benchmarks.gpu`."""
