"""Business rules, as functions that take a session. They never commit; the route commits."""
