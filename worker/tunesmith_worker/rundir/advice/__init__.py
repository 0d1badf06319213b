"""The judgement of a run report: what bounds the run and which change would help most."""
