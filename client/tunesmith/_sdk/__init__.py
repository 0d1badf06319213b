"""The SDK: the client, its resources, and the objects that they return."""
