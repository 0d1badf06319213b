"""Parts of the schedule benchmark: a week of jobs on the real claim code, with a virtual clock."""
