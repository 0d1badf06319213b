"""Leased work other than training: a thread renews the lease while a child process works."""
