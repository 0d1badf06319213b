"""Inference process: answers chat and text completions over HTTP with the serving engine."""
