"""Files of server tests that `make test` runs on both PostgreSQL and SQLite.

`make test-full` runs every test with a database on both, except for parameters that change no SQL.
"""

from __future__ import annotations

import pytest

FIXTURES = ("database_url", "empty_url")

ON_POSTGRESQL = {
    # State, leases, locks and the janitor.
    *("test_claims", "test_control_races", "test_idempotency", "test_janitor"),
    *("test_lost_workers", "test_races", "test_transactions", "test_wake_ups"),
    # The schema, and SQL that differs between the two databases.
    "test_scope",
    *("test_event_feed", "test_events", "test_lists", "test_migrations", "test_waiting"),
    *("test_garbage", "test_job_delete", "test_report_order", "test_job_filters"),
    *("test_fair_share", "test_job_limits", "test_claim_cost", "test_claim_stalls"),
    *("test_resume_points", "test_metric_columns"),
    "test_sample_search",
}

ONE_VALUE_ON_POSTGRESQL = {
    # Requests refused before a query, and ranges of stored bytes.
    *("test_bad_requests", "test_bounds", "test_chat", "test_chat_limits", "test_error_cost"),
    *("test_errors", "test_file_names", "test_file_ranges", "test_file_rows", "test_files"),
    *("test_job_validation", "test_jobs_create", "test_models", "test_recipe_errors"),
    *("test_reinforcement_jobs", "test_upload_limits", "test_uploads"),
    # Connections, keys and headers.
    *("test_authentication", "test_connections", "test_log_lines", "test_sse", "test_tls"),
    "test_unfinished_bodies",
    # The same queries with other numbers, documents or stores.
    *("test_blobs", "test_page_bounds", "test_read_only_storage", "test_run_reports"),
    "test_stored_versions",
}
"""Files whose parameters change no SQL: PostgreSQL runs each test with its first parameters, SQLite
with all."""


def without_repetitions(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave out the tests that run the same SQL on PostgreSQL again."""
    seen: set[str] = set()
    kept = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        values = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.stem in ONE_VALUE_ON_POSTGRESQL and "postgresql" in values.values():
            if function in seen:
                continue
            seen.add(function)
        kept.append(item)
    return kept
