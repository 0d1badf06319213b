"""Jobs as users see and change them, from creation to report."""
