"""AdamW optimisers for full tuning in bf16, and a measurement of updates lost to rounding."""
