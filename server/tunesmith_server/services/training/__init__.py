"""A job from its creation to its report, as users see and change it."""
