"""The queue: order of jobs, limits, usage and forecasts. Services call this package. The package
does not change the state of jobs."""
