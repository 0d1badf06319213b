"""The run report: what a trainer and its supervisor account for, and what follows from it."""
