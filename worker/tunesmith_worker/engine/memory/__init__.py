"""Predict, measure and plan the memory of a training step."""
