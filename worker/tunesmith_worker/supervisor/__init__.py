"""The Celery worker: claims jobs, fetches inputs, runs trainers and reports to the server.

Trainers run as child processes. The worker never imports torch.
"""
