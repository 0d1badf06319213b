"""The life of a lease: claims, reports of workers, resume points, retries."""
