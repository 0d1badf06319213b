"""The base model, its adapter, quantization and embeddings."""
