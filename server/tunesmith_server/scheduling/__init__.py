"""The queue: the order of jobs, limits, usage, forecasts. Services call this package; it changes no
job's state."""
