"""How fast and how lean Tunesmith is: programs that print one JSON line each."""
