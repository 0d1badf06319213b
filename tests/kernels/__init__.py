"""Tests of the kernels: reference, CPU path and Triton path held together."""
