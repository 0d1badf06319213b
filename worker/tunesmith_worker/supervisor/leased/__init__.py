"""Leased work other than training: a child process works, and a thread renews the lease."""
