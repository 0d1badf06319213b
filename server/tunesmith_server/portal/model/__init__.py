"""Contents of the page of a model, computed from the answers of the API."""
