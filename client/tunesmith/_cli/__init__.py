"""The command line: one file for each group of commands, and their shared options and output."""
