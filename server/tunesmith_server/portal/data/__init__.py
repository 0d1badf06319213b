"""Contents of the pages of data sets: rows as conversations, tables as CSV, lengths as a
drawing."""
