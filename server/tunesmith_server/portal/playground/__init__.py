"""The playground: one prompt, and the answers of up to four models side by side."""
