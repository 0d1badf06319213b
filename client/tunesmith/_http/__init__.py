"""The HTTP connection: settings, retries, errors, pages, server-sent events."""
