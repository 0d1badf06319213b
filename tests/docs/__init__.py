"""Tests of the docs: generated pages, links, and commands that run as pasted."""
