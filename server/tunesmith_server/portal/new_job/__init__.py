"""Data of the page that starts a job: fields, request, choices, and the same as a command."""
