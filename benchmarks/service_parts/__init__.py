"""Parts of benchmarks/service.py. Each part measures one property of the service."""
