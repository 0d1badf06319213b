"""Training of small random models of every causal language model in transformers."""
