"""What the page of a job shows, computed from the answers of the API."""
