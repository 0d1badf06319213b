"""Leased work other than training: the lease is renewed by a thread while a child process works."""
