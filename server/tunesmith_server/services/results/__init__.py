"""Metrics, samples, self-checks and health of a job."""
