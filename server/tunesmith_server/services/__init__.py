"""Business rules, as functions on a session. They never commit: the route does."""
