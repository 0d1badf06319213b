"""Server tests that run on PostgreSQL.

`make test-full` runs every test with a database on both PostgreSQL and SQLite, except where the
second database could find nothing: see `ONE_VALUE_ON_POSTGRESQL` and `ON_SQLITE_ALONE`.
"""

from __future__ import annotations

import pytest

from ..long_tail.table import ALL

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
"""Files that `make test` runs on both databases, too."""

ONE_VALUE_ON_POSTGRESQL = {
    # Requests refused before a query, and ranges of stored bytes.
    *("test_bad_requests", "test_bounds", "test_chat", "test_chat_limits", "test_error_cost"),
    *("test_errors", "test_file_names", "test_file_ranges", "test_file_rows", "test_files"),
    *("test_job_validation", "test_jobs_create", "test_models", "test_recipe_errors"),
    *("test_reinforcement_jobs", "test_upload_limits", "test_uploads"),
    "test_inference_servers",
    # Connections, keys and headers.
    *("test_authentication", "test_connections", "test_log_lines", "test_sse", "test_tls"),
    "test_unfinished_bodies",
    # The same queries with other numbers, documents or stores.
    *("test_blobs", "test_page_bounds", "test_read_only_storage", "test_run_reports"),
    "test_stored_versions",
}
"""Files whose parameters change no SQL: PostgreSQL runs each test with its first parameters, SQLite
with all."""

ON_SQLITE_ALONE = {
    # HTML of texts that other tests store and show. Forms with such texts run on PostgreSQL.
    "portal/test_compare.py": {
        "test_hostile_names_and_completions_are_inert",
        "test_curves_are_compressed",
    },
    "portal/test_completions.py": {"test_hostile_completions_are_inert"},
    "portal/test_data.py": {"test_hostile_names_and_rows_are_inert"},
    "portal/test_edit.py": {"test_hostile_names_and_notes_are_inert_and_shown_whole"},
    "portal/test_hostile.py": {"test_hostile_texts_are_inert_on_every_page"},
    "portal/test_job_page.py": {"test_hostile_texts_are_inert"},
    "portal/test_models.py": {"test_hostile_names_of_models_are_inert"},
    "portal/test_new_job.py": {"test_hostile_texts_are_inert"},
    "portal/test_pages.py": {"test_hostile_names_are_inert"},
    "portal/test_playground.py": {"test_hostile_prompts_and_completions_are_data"},
    "portal/test_shared.py": {"test_hostile_names_are_inert_in_open_graph_data"},
    # Headers, compression, the SDK's and the command line's own code.
    "portal/test_cross_site.py": {ALL},
    "portal/test_headers.py": {ALL},
    "test_api_docs.py": {ALL},
    "test_openai_client.py": {ALL},
    "test_sdk_organization.py": {ALL},
    "test_sdk_uploads.py": {ALL},
    # CPU time and memory of this process: PostgreSQL is another process.
    "test_answer_times.py": {ALL},
    "test_chat_load.py": {
        "test_large_requests_cost_little_memory_while_they_wait",
        "test_streams_that_nobody_reads_delay_no_heartbeat",
    },
    "test_portal_cost.py": {ALL},
}
"""Tests with the same statements as other tests, which run on both databases. Their assertions
depend on no database."""


def on_both(file: str, function: str) -> bool:
    """Return True if a test runs on both databases. `file`: its path below tests/server."""
    return not {ALL, function} & ON_SQLITE_ALONE.get(file, set())


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
