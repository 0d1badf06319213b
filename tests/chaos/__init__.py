"""kill -9 at random moments, over and over: `make chaos` for the long form."""
