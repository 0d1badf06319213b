"""Contents of the page that starts a job: fields, request, choices, and the request as a
command."""
