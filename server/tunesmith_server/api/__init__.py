"""Thin HTTP: parse, call one service function, return."""
