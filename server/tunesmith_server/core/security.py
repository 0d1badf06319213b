"""API keys: 256 random bits, stored as sha256. Random keys of this length need no slow hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets

KEY_PREFIX = "tunesk-"
"""Prefix of every new key, so that secret scanners can find leaked keys.

Keys of earlier releases start with `ts-` and stay valid.
"""
SHOWN_LETTERS = 11
"""Number of a key's first characters that are stored and shown, so that users can distinguish
keys."""


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def equal_secrets(left: str, right: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())
