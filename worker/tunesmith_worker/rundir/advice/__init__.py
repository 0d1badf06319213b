"""Find a run's bottleneck and the most useful change, for its report. Never imports torch."""
