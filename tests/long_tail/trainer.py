"""Tests of the training process."""

from __future__ import annotations

from .table import ALL, FAMILIES, Rows

ROWS: Rows = {
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
    "worker/trainer/grpo/test_families.py": {
        "test_the_reward_does_not_fall_and_log_probs_agree": ("mixtral", "granitemoehybrid"),
    },
    "worker/trainer/grpo/test_rollout_gap.py": {
        "test_the_measurement_changes_no_bit_of_a_run_with_dropout": (),
        "test_a_gap_is_warned_of_and_a_far_larger_one_ends_the_run": ("a little-plain", "far-d*"),
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
    "worker/trainer/test_any_architecture.py": {
        "test_losses_equal_stock_trl": (*("gpt2", "falcon", "gemma3n_text", "phimoe", "mamba"),),
        "test_reinforcement_generates_by_transformers": ("gpt2", "mamba"),
    },
    "worker/trainer/methods/test_completion_scores.py": {
        "test_shared_prompts_train_as_plain_rows": FAMILIES,
        "test_layers_that_recompute_give_the_bits_of_keeping_all": FAMILIES,
        "test_a_completion_is_bit_for_bit_untouched_by_its_siblings": FAMILIES,
    },
    "worker/trainer/methods/test_groups_bf16.py": {
        "test_a_shared_prompt_errs_no_more_than_one_and_a_half_times_plain_rows": FAMILIES,
    },
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
}
