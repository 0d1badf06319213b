"""Benchmarks of speed and memory. Each benchmark is a program that prints JSON lines."""
