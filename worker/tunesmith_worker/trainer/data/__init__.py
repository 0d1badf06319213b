"""Conversion of data files to token ids and labels.

The checks in `rows` need neither torch nor a tokenizer.
"""
