"""The Celery worker: it claims jobs, fetches their inputs, runs trainers as child processes and
reports to the server. Never imports torch.
"""
