"""Settings, database engine, storage, Celery producer, keys and errors. Imports no other folder of
the server."""
