"""The Celery worker: claims jobs, fetches their inputs, runs trainers as child processes, reports.

Never imports torch.
"""
