"""File transfer: uploads as a whole or in parts, and verified downloads."""
