"""Benchmarks of speed and memory. Each is a program that prints JSON lines."""
