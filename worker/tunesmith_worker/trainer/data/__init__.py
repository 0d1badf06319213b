"""From a file to token ids and labels. `rows` needs no torch; `chat`, `tokens` know a tokenizer."""
