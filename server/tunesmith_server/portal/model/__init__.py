"""A model's page: what it reads and how it draws it."""
