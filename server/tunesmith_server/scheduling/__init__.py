"""The queue: order of jobs, limits, usage and forecasts. Services call this package; it changes no
job's state."""
