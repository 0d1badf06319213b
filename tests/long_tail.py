"""The long tail is the set of tests that only `make test-full` runs.

`make test` takes less than 9 minutes, with at least one test for each path through the product.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

FAMILIES = (
    *("llama", "llama-lora", "llama-full", "*-llama"),
    *("*qwen3*", "*gemma2*", "*phi3*"),
)
"""Families that represent all others: plain, norms of query and key, caps, packed projections."""

ALL = ""
"""Every test of the file or folder."""

ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "server/test_route_matrix.py": {
        "test_each_route_answers_by_role_and_project": ("*member",),
    },
    "server/test_answer_times.py": {ALL: ()},
    # Whole services, images and kills. `make test` kills each process once.
    "chaos/": {ALL: ()},
    "deploy/test_build.py": {ALL: ()},
    "deploy/test_compose.py": {ALL: ()},
    "browser/test_pages.py": {
        "test_a_page_is_accessible_and_silent": ("*-light-wide", "*-dark-phone"),
    },
    "end_to_end/test_demo.py": {ALL: ()},
    "end_to_end/test_drain.py": {ALL: ()},
    "end_to_end/test_larger.py": {ALL: ()},
    "end_to_end/test_warm_trainer.py": {ALL: ()},
    "end_to_end/test_control.py": {ALL: ()},
    "end_to_end/test_going_on.py": {ALL: ()},
    "end_to_end/test_durability.py": {
        "test_a_job_whose_trainer_was_killed_goes_on": (),
        "test_a_killed_trainer_ends_the_attempt_and_says_how": (),
        "test_a_message_lost_with_the_broker_costs_seconds_only": (),
        "test_without_a_broker_files_are_read_and_jobs_trained": (),
        "test_a_server_away_for_longer_than_the_lease_pauses_the_trainer_and_keeps_it": (),
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
    "end_to_end/test_reinforcement.py": {
        "test_a_reinforcement_job_tells_rewards_samples_and_where_its_time_went": (),
    },
    "end_to_end/test_service.py": {
        "test_a_queued_job_is_cancelled_at_once_and_never_starts": (),
        "test_a_job_is_cancelled_while_its_trainer_still_imports": (),
        "test_the_first_step_comes_soon_after_the_request": (),
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
    "worker/trainer/evaluation/test_supervised.py": {
        "test_a_model_that_training_spoiled_is_worse": (),
        "test_weights_that_are_not_the_result_are_compared_too": (),
        "test_the_best_checkpoint_is_compared_with_the_result": (),
        "test_a_model_from_random_weights_has_no_base": (),
        "test_plain_text_is_continued_from_its_middle": (),
    },
    "worker/trainer/evaluation/test_on_demand.py": {
        "test_equal_models_are_never_better": (),
        "test_models_with_different_tokenizers_are_not_compared": (),
    },
    "worker/trainer/evaluation/test_reinforcement.py": {
        "test_prompts_that_are_split_off_are_evaluated": (),
    },
    "worker/trainer/grpo/test_rollout_gap.py": {
        "test_the_measurement_changes_no_bit_of_a_run_with_dropout": (),
        "test_a_gap_is_warned_of_and_a_far_larger_one_ends_the_run": ("a little-plain", "far-d*"),
    },
    "benchmarks/test_bare_machine.py": {
        "test_tests_that_need_a_gpu_need_no_package_of_the_server": (),
    },
    # More model families, real models and rare settings.
    "worker/trainer/auto/test_memory_report.py": {
        "test_the_prediction_is_within_its_tolerance": ("llama-lora-bf16-tiny", "mixtral*-tiny"),
        "test_a_small_run_reports_the_tensors_that_it_held": ("bf16", "stock"),
    },
    "worker/trainer/auto/test_packing_fallback.py": {
        "test_the_trial_finds_models_that_mix_rows": ("many tokens-*",),
    },
    "worker/trainer/grpo/test_reference.py": {
        "test_the_reference_is_the_base_model_at_every_step": ("all biases",),
        "test_trained_biases_are_saved_as_trained_and_a_resumed_run_has_the_same_reference": (),
    },
    "worker/engine/patches/test_adam_steps.py": {
        "test_weights_change_as_in_stock": FAMILIES,
    },
    "worker/engine/patches/test_twenty_steps.py": {
        "test_real_models_on_real_rows": (),
        "test_the_tiny_model_with_dropout_and_checkpointing": (),
        "test_the_tiny_model": ("lora",),
    },
    "worker/trainer/test_any_architecture.py": {
        "test_losses_equal_stock_trl": (*("gpt2", "falcon", "gemma3n_text", "phimoe", "mamba"),),
        "test_reinforcement_generates_by_transformers": ("gpt2", "mamba"),
    },
    "worker/engine/patches/test_first_step.py": {
        "test_gradients_equal_stocks": ("stories260K-lora",),
    },
    "worker/engine/patches/test_parity_bf16.py": {ALL: FAMILIES},
    "worker/engine/serving/test_equality.py": {
        "test_eight_adapters_interleaved_answer_as_peft": ("llama",),
        "test_other_adapters_are_left_to_peft": ("use_dora",),
        "test_trained_token_rows_answer_as_peft": ("True",),
        "test_one_adapter_or_none_answers_as_peft": ("1",),
        "test_unknown_families_answer_through_transformers": ("gpt2",),
    },
    "worker/engine/serving/test_prompt_scores.py": {
        "test_scores_of_prompts_equal_a_plain_forward_pass": ("llama*",),
    },
    "worker/engine/serving/test_batching.py": {
        "test_rope_frequencies_that_change_with_the_length": ("longrope",),
    },
    "worker/engine/serving/test_sampling.py": {
        "test_tokens_follow_the_models_distribution": (),
    },
    "worker/inference/test_process.py": {
        "test_echo_returns_the_prompt_with_its_log_probs": ("base",),
        "test_an_idle_model_is_unloaded_and_loads_again": (),
        "test_a_closed_connection_cancels_and_frees_the_cache": ("True",),
    },
    "worker/engine/rollout/test_equality.py": {
        "test_greedy_tokens_and_logprobs_are_the_models_own": (*FAMILIES, "gemma3"),
    },
    "worker/engine/rollout/test_fold.py": {
        "test_a_thousand_rollouts_leave_every_weight_as_it_was": ("dtype0",),
    },
    "worker/engine/rollout/test_graphs.py": {
        "test_room_is_reserved_so_that_a_recording_lasts": ("70-2",),
        "test_recorded_steps_draw_what_others_draw": FAMILIES,
    },
    "worker/engine/memory/test_estimate.py": {
        "test_the_peak_is_within_ten_percent_of_what_is_held": (
            *("lora", "lora-mixed", "full-bf16", "token-rows", "stock-full-recompute"),
        ),
        "test_what_a_layer_keeps_is_known_to_the_percent": (
            *("lora", "lora-dropout", "full-recompute", "whole-embedding", "stock-lora"),
        ),
        "test_what_a_layer_keeps_is_known_for_every_family": FAMILIES,
    },
    "worker/engine/patches/test_packed_rows.py": {
        "test_nothing_saved_for_backward_is_written_to_before_it_is_read": FAMILIES,
        "test_packed_rows_train_as_one_row_at_a_time": FAMILIES,
    },
    "worker/trainer/methods/test_completion_scores.py": {
        "test_shared_prompts_train_as_plain_rows": FAMILIES,
        "test_layers_that_recompute_give_the_bits_of_keeping_all": FAMILIES,
        "test_a_completion_is_bit_for_bit_untouched_by_its_siblings": FAMILIES,
    },
    "worker/trainer/methods/test_groups_bf16.py": {
        "test_a_shared_prompt_errs_no_more_than_one_and_a_half_times_plain_rows": FAMILIES,
    },
    "worker/engine/memory/test_quantized_memory.py": {ALL: ()},
    "worker/engine/optimizers/test_split_master.py": {
        "test_c1_stochastic_rounding_keeps_them_in_the_mean": (),
    },
    "worker/engine/model/test_new_tokens.py": {
        "test_e4_an_adapter_with_new_tokens_makes_the_round_trip": (
            "resized-tied",
            "padded-untied",
            "partly-padded-pad-is-eos-tied",
        ),
    },
    "worker/engine/model/test_token_rows.py": {
        "test_e2_empty_rows_of_the_template_are_trained_as_rows": (),
    },
    "kernels/test_compiled.py": {ALL: ()},
    "worker/trainer/selfcheck/test_tripwires.py": {
        "test_a_planted_fault_is_named": (
            *("frozen-*", "detached-*", "plant-recipe3-*", "no_rate-*", "plant-recipe6-*"),
            *("plant-recipe7-*", "unlabelled-*", "no_loss-*", "plant-recipe11-*", "deaf_token-*"),
        ),
    },
    "worker/trainer/selfcheck/test_good_runs.py": {
        "test_a_good_run_gives_no_alarm": (
            *("llama-recipe0", "qwen3*", "gemma2*", "nf4-recipe21", "experts*"),
        ),
        "test_a_run_is_the_same_to_the_bit_without_it": ("*lora_dropout*", "{'tuning': 'full'}"),
    },
    "worker/trainer/selfcheck/test_no_false_alarm.py": {
        "test_no_family_gives_an_alarm": ("gemma3*",),
        "test_a_good_run_gives_no_alarm": ("token-rows", "full-fp32", "biases"),
        "test_looks_are_at_steps_1_10_and_50_and_change_no_bit": (),
    },
    "worker/trainer/selfcheck/test_row_lengths.py": {
        "test_a_fault_of_long_rows_is_named": ("second tile", "window*"),
    },
    "worker/trainer/selfcheck/test_fault_table.py": {
        "test_a_silent_fault_is_silent": (),
    },
    "worker/trainer/selfcheck/shadow/test_honest_runs.py": {
        "test_a_sound_run_gives_no_alarm": ("gemma2-*packed*", "phi3-grpo"),
    },
    "worker/trainer/selfcheck/shadow/test_first_step.py": {
        "test_a_planted_fault_is_named": (
            *("mean of means", "lost gradient", "dropped*", "no clipping", "small rate"),
        ),
        "test_a_good_run_gives_no_alarm": ("packed", "dropout"),
        "test_a_run_is_the_same_to_the_bit_without_it": ("*lora_dropout*",),
    },
    "worker/trainer/selfcheck/shadow/test_first_policy_step.py": {
        "test_a_planted_fault_is_named": ("flipped advantage", "shifted rewards", "transposed*"),
        "test_a_good_run_gives_no_alarm": ("grpo and reference",),
        "test_a_grader_that_is_not_deterministic_gives_a_warning": (),
        "test_a_run_is_the_same_to_the_bit_without_it": (),
    },
    "worker/trainer/selfcheck/shadow/test_resumed_step.py": {
        "test_a_fault_of_the_second_attempt_is_named": ("normaliser",),
        "test_a_resumed_run_proves_its_first_step": ("rest of an epoch",),
        "test_a_fork_proves_its_first_step_at_its_own_rate": (),
        "test_a_resumed_reinforcement_run_proves_its_first_step": (),
        "test_a_step_on_completions_of_an_earlier_attempt_says_what_was_not_compared": (),
    },
    "worker/trainer/selfcheck/shadow/test_samples.py": {
        "test_a_step_beyond_the_time_is_compared_in_part": ("one micro-batch",),
        "test_a_sample_shows_a_fault": (),
        "test_a_reinforcement_step_beyond_the_memory_says_so": (),
    },
    "worker/trainer/selfcheck/shadow/test_later_steps.py": {
        "test_a_planted_fault_is_named": ("same_rows-*", "smaller_rate*"),
        "test_a_planted_fault_of_a_reinforcement_run_is_named": ("policy_as_reference-*",),
    },
    "worker/trainer/selfcheck/rollouts/test_good_runs.py": {
        "test_good_rollouts_give_no_alarm": ("llama*", "qwen3*"),
    },
    "worker/trainer/grpo/test_stock_losses.py": {
        "test_a_variant_is_trls": (
            *("grpo", "dapo", "gspo", "cispo", "kl, three steps"),
            *("overlong masked", "no scale", "clip-higher"),
        ),
    },
    "worker/trainer/grpo/test_recorded_steps.py": {ALL: ()},
    "worker/trainer/grpo/test_exactness.py": {
        "test_killed_after_a_step_it_ends_as_if_nothing_had_been": ("lora",),
    },
    "worker/trainer/checkpoints/test_exactness.py": {
        "test_a_run_that_is_stopped_again_and_again_agrees_in_validation_too": (),
        "test_killed_after_any_step_it_ends_as_if_nothing_had_been": ("padding_free",),
    },
    "worker/trainer/checkpoints/test_refused.py": {
        "test_a_fork_may_change_what_still_fits": (),
    },
    "worker/trainer/methods/test_nan_rows.py": {
        "test_the_row_the_token_and_the_layer_are_named": (
            *("lora-nan", "packed-inf", "split-master-nan"),
        ),
        "test_a_good_run_is_bit_for_bit_the_run_without_a_guard": ("how0",),
        "test_weights_and_moments_stay_those_before_the_bad_step": ("fp32", "lora"),
    },
    "worker/trainer/auto/test_memory_plan.py": {
        "test_rows_are_split_when_recomputing_does_not_help": (),
        "test_what_the_user_says_is_done_and_counted": ("offload",),
        "test_a_run_is_the_same_with_and_without_the_trial": (),
        "test_padded_rows_are_split_too": (),
    },
    "worker/trainer/auto/test_out_of_memory.py": {
        "test_a_state_that_fits_at_the_second_try_costs_nothing": (),
        "test_an_evaluation_that_does_not_fit_is_taken_in_parts_and_gives_the_same_loss": ("off",),
    },
    "worker/trainer/auto/test_layout_choice.py": {
        "test_the_layout_of_plan_json_is_used_again": ("padded_compiled",),
    },
    "worker/trainer/test_host_reads.py": {
        "test_nobody_reads_the_device_in_a_step": ("packed", "token-rows"),
    },
    "worker/trainer/test_path_taken.py": {
        "test_a_run_says_which_path_it_took": ("auto-*", "off-*"),
    },
    "worker/trainer/grpo/test_messages.py": {
        "test_a_run_that_can_learn_nothing_says_so_at_its_end": ("grpo0*", "grpo2*"),
        "test_a_run_with_a_spread_somewhere_does_not": (),
    },
    "worker/trainer/test_compare_stock.py": {
        "test_both_curves_are_printed_and_agree": (),
        "test_a_kernel_that_is_wrong_in_bf16_alone_is_found_on_a_real_model": (),
        "test_a_kernel_that_is_wrong_by_one_percent_is_found": ("fp32",),
        "test_bf16_is_measured_by_stock_in_fp32_which_is_said_to_cost": (),
    },
    "worker/trainer/test_precision.py": {
        "test_bf16_with_error_words_or_stochastic_rounding_ends_where_fp32_does": (),
    },
    "worker/trainer/test_quantization.py": {ALL: ()},
    "worker/trainer/test_read_back.py": {
        "test_a_fault_of_saving_is_refused_after_a_download": (
            *("alpha doubled", "rows of new tokens lost", "one B zero"),
        ),
        "test_a_fault_of_saving_is_refused_before_success": ("module missing", "head untied"),
        "test_an_honest_run_is_verified_far_below_the_tolerance": ("new-tokens", "full-bf16"),
        "test_an_error_of_patching_again_does_not_hide_a_mismatch": (),
    },
    "worker/trainer/test_real_data.py": {ALL: ()},
    "worker/trainer/data/test_token_memory.py": {ALL: ()},
    "worker/trainer/data/test_token_stream.py": {
        "test_helpers_give_what_the_trainer_alone_gives": ("text*",),
        "test_helpers_end_with_the_trainer": ("*9*", "*KILL*"),
    },
    "worker/trainer/data/test_parquet_bombs.py": {
        "test_a_parquet_bomb_is_named_and_costs_little_memory": ("zeros",),
    },
    "worker/supervisor/test_trainer_signals.py": {
        "test_sigterm_and_ctrl_c_in_training_save_a_resume_point": ("15",),
        "test_a_cancelled_run_leaves_without_saving": (),
    },
    "worker/supervisor/test_warm_trainer.py": {
        "test_importing_asks_no_driver_for_a_gpu": (),
    },
    "test_no_pickle.py": {
        "test_a_job_writes_and_reads_no_pickle": ("lora",),
    },
}
"""File or folder below tests/ -> test function -> its parameters that `make test` keeps."""


def in_long_tail(node: str) -> bool:
    """Return True if only `make test-full` runs a test. `node`: its pytest id without tests/, such
    as `worker/trainer/test_run.py::test_a[b]`.
    """
    name, _, parameter = node.partition("[")
    file, _, function = name.partition("::")
    tests = next((row for path, row in ROWS.items() if _is_in(file, path)), {})
    kept = tests.get(function, tests.get(ALL))
    if kept is None:
        return False
    return not any(fnmatchcase(parameter.removesuffix("]"), pattern) for pattern in kept)


def _is_in(file: str, path: str) -> bool:
    return file.startswith(path) if path.endswith("/") else file == path
