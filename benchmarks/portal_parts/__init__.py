"""Parts of the portal benchmark."""
