"""Downloads of a claimed job: its files, base model and resume points."""
