"""Business rules, as functions that take a session. Only the routes commit a session."""
