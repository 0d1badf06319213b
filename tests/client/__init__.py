"""Tests of the SDK and the CLI, without a Tunesmith server."""
