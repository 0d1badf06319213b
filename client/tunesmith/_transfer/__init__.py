"""File transfer: uploads (whole or in parts) and verified downloads."""
