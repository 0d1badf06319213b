"""Contents of the page of a job's completions, computed from the answers of the API."""
