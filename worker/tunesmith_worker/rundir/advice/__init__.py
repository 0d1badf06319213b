"""Find a run's bottleneck and the most useful change, for its report. This package never imports
torch."""
