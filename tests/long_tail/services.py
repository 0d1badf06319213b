"""Tests of the server, whole services, docs and benchmarks."""

from __future__ import annotations

from .table import ALL, Rows

ROWS: Rows = {
    "server/test_route_matrix.py": {
        "test_each_route_answers_by_role_and_project": ("*member",),
    },
    # Whole services, images and kills. `make test` kills each process once.
    "chaos/": {ALL: ()},
    "deploy/test_build.py": {ALL: ()},
    "deploy/test_compose.py": {ALL: ()},
    "end_to_end/test_demo.py": {ALL: ()},
    "end_to_end/test_larger.py": {ALL: ()},
    "end_to_end/test_control.py": {ALL: ()},
    "end_to_end/test_going_on.py": {ALL: ()},
    "end_to_end/test_durability.py": {
        "test_a_job_whose_trainer_was_killed_goes_on": (),
        "test_a_killed_trainer_ends_the_attempt_and_says_how": (),
        "test_a_message_lost_with_the_broker_costs_seconds_only": (),
        "test_without_a_broker_files_are_read_and_jobs_trained": (),
        "test_a_server_away_for_longer_than_the_lease_pauses_the_trainer_and_keeps_it": (),
        "test_a_job_moves_from_a_drained_worker_to_one_that_is_stopped_and_to_a_third": (),
        "test_ctrl_c_releases_the_job_and_an_empty_disk_takes_it_up_from_storage": (),
        "test_a_job_that_kills_every_worker_fails_instead_of_going_round": (),
        "test_two_workers_and_one_job_make_one_trainer": (),
        "test_a_supervisor_killed_in_mid_job_takes_its_trainer_along": (),
        "test_kill_9_of_serve_leaves_no_process": (),
    },
    "end_to_end/test_interrupted_start.py": {
        "test_ctrl_c_during_the_start_of_serve_ends_it_quietly": ("migration",),
        "test_ctrl_c_during_the_start_of_a_worker_ends_it_quietly": (),
    },
    "end_to_end/test_trip.py": {
        "test_a_model_made_from_scratch_is_the_base_of_the_next_job": (),
        "test_the_examples_run_as_they_stand": (),
        "test_curl_does_the_same": (),
    },
    "test_packaging.py": {
        "test_the_bare_wheel_is_a_client_without_torch_or_server_code": (),
    },
    # Benchmarks. Their bars find regressions of speed and memory.
    "benchmarks/test_sft.py": {ALL: ()},
    "benchmarks/test_families.py": {"test_a_family_is_measured": ()},
    "benchmarks/test_gpu.py": {ALL: ()},
    "benchmarks/test_models.py": {
        "test_a_recorded_model_type_trains_as_recorded": (),
    },
    "benchmarks/test_gpu_memory.py": {ALL: ()},
    "benchmarks/test_layouts.py": {"test_a_tiny_cell_is_measured": ()},
    "benchmarks/test_grpo.py": {ALL: ()},
    "benchmarks/test_kernels.py": {"test_one_json_line_is_printed": ()},
    "benchmarks/test_service.py": {ALL: ()},
    "server/test_claim_stalls.py": {"test_stalled_claimers_lose_and_double_no_job": ("*-60",)},
    "server/test_schedule.py": {ALL: (), "test_hours_with_deaths_lose_and_double_nothing": ("*",)},
    # The server under a fuzzer, and the same rejected input in every kind of process.
    "server/test_tls.py": {"test_serve_and_its_workers_speak_https": ()},
    "server/test_page_bounds.py": {
        "test_pages_join_at_the_seams_of_their_chunks": ("*-49-50", "*-50-51", "*-1000-120"),
    },
    "server/test_quarantine.py": {
        "test_an_event_that_cannot_be_stored_is_replaced_and_the_rest_is_kept": (
            *("*-a step beyond 64 bits", "*-an endless message", "*-half a letter"),
            *("*-an unknown kind", "*-a list", "*-a checkpoint without content"),
        ),
    },
    "server/test_stored_versions.py": {
        "test_a_stored_job_is_shown_claimed_and_retried": ("*-01-*", "*-07-*", "*-10-*"),
    },
    "server/test_lists.py": {
        "test_any_metadata_key_can_be_asked_for": ('*-a"b', "*-a.b", "*-$", "*-'", "*-"),
    },
    "server/test_report_order.py": {
        "test_a_fence_belongs_to_one_worker_and_attempt": ("sqlite-*", "postgresql-False-change0"),
        "test_events_after_a_gap_are_kept_by_the_worker": ("sqlite-*", "postgresql-numbers1-1"),
    },
    "server/test_schemathesis.py": {ALL: ()},
    "server/test_unsafe_settings.py": {
        "test_a_default_secret_starts_nothing": ("BROKER*worker", "WORKER*api"),
        "test_a_data_directory_open_to_others_starts_nothing": ("api",),
        "test_a_public_address_without_tls_or_proxy_starts_nothing": ("api",),
    },
    "docs/test_commands.py": {ALL: ()},
    "client/test_cli_chat.py": {"test_two_models_side_by_side": ()},
    "server/test_chat.py": {
        "test_what_would_change_the_answer_is_refused_by_name": ("*tools*", "*top_k*")
    },
    "end_to_end/test_chat.py": {ALL: ()},
    "end_to_end/test_lm_eval.py": {ALL: ()},
    "end_to_end/test_evaluate.py": {ALL: ()},
    "benchmarks/test_bare_machine.py": {
        "test_tests_that_need_a_gpu_need_no_package_of_the_server": (),
    },
}
