"""Parts of the benchmark of the portal."""
