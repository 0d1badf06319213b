"""Contents of the page that compares jobs, from `GET /v1/fine_tuning/compare`."""
