"""Tests of the engine, the inference process, the supervisor and the kernels."""

from __future__ import annotations

from .table import ALL, FAMILIES, Rows

ROWS: Rows = {
    "worker/engine/patches/test_adam_steps.py": {
        "test_weights_change_as_in_stock": FAMILIES,
    },
    "worker/engine/patches/test_twenty_steps.py": {
        "test_real_models_on_real_rows": (),
        "test_the_tiny_model_with_dropout_and_checkpointing": (),
        "test_the_tiny_model": ("lora",),
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
        "test_the_peak_is_known_to_ten_percent_and_a_layers_share_to_one": (
            *("lora", "lora-dropout", "lora-mixed", "full-bf16", "token-rows"),
            *("whole-embedding", "stock-full-recompute"),
        ),
        "test_what_a_layer_keeps_is_known_for_every_family": FAMILIES,
    },
    "worker/engine/patches/test_packed_rows.py": {
        "test_nothing_saved_for_backward_is_written_to_before_it_is_read": FAMILIES,
        "test_packed_rows_train_as_one_row_at_a_time": FAMILIES,
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
