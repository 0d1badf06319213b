"""Model computations that do not depend on jobs."""
