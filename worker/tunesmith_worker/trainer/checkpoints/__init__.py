"""Resume points: all state that a run needs to continue from a step, bit for bit, in one folder."""
