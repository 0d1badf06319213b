"""Projects, users, members, API keys, and the policy of all routes."""
