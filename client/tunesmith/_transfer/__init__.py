"""File transfer: uploads whole or in parts, verified downloads."""
