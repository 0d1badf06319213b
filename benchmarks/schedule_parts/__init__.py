"""Parts of the schedule benchmark, which simulates a week of jobs with the real claim code and a
virtual clock."""
