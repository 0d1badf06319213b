"""Contents of the page of a job, computed from the answers of the API."""
