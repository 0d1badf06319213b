"""AdamW optimisers for full tuning in bf16, and the fraction of updates lost to rounding."""
