"""The rules, as functions that take a session. They never commit: the edge of the request does."""
