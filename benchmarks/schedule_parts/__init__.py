"""Parts of the schedule benchmark, which simulates weeks of jobs with the real claim code."""
