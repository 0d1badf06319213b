"""Files of server tests that `make test` runs on both PostgreSQL and SQLite.

`make test-full` runs every test with a database on both.
"""

from __future__ import annotations

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
