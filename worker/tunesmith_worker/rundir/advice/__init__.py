"""Conclusions of a run report: the bottleneck of the run and the most useful change. No torch."""
