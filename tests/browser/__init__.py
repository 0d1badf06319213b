"""Tests of the portal in a real Chromium, which `make browser` installs into `.venv/browser`."""
