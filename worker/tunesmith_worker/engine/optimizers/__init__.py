"""AdamW for full tuning in bf16: optimisers of torch's kind, and how many updates were lost."""
