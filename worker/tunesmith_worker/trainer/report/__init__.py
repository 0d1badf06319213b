"""The trainer's part of the run report: times, counts, memory and utilization."""
