"""Conversion of data files to token ids and labels.

The checks of data rows in rows.py need neither torch nor a tokenizer.
"""
