"""The trainer as a child process of the supervisor."""
