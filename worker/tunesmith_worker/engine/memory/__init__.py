"""Memory of a training step: prediction, measurement, planning, retries."""
