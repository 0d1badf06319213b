"""Business rules, as functions that take a database session. Only the routes commit a session."""
