"""Tests of docker/ without an engine: the files, and the service started as they describe."""
