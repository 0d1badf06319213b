"""What a GPU makes of our kernels and trainer, in one call: `python -m benchmarks.gpu`."""
