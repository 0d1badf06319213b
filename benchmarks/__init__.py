"""Benchmarks of speed and memory: programs that print JSON lines."""
