"""Resolution of every setting that a recipe leaves at "auto"."""
