"""Resume points: folders with the state that a run needs to continue exactly after a step."""
