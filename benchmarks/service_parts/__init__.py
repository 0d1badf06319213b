"""The parts of benchmarks/service.py; each measures one promise of the service."""
