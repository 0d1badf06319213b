"""Settings, database engine, storage, Celery producer, keys and errors. This package imports no
other folder of the server."""
