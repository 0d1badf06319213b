"""Two run reports for the OpenAPI document. The numbers are invented, but they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import JsonValue

REPORT_EXAMPLE: Mapping[str, JsonValue] = MappingProxyType(
    {
        "object": "fine_tuning.job.report",
        "job_id": "ftjob-0123456789abcdef01234567",
        "attempt": 1,
        "live": False,
        "updated_at": 1_795_190_400,
        "outcome": "succeeded",
        "started_at": 1_795_190_000.25,
        "wall_seconds": 400.0,
        "queued_seconds": 0.4,
        "phases": {
            **{"claim": 0.02, "download": 0.35, "spawn": 0.2, "import": 6.1, "load": 3.4},
            **{"data": 2.6, "plan": 0.03, "setup": 1.1, "data_wait": 1.5, "forward": 96.0},
            **{"backward": 171.2, "optimizer": 6.4, "evaluation": 104.0, "checkpointing": 2.1},
            **{"logging": 0.8, "train": 1.2, "save": 0.5, "exit": 0.6, "upload": 1.4, "other": 0.5},
        },
        "steps": 500,
        "total_steps": 500,
        "settings": {
            "tuning": "lora",
            "precision": "bf16",
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "packing": False,
            "layout": "padding_free",
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "eval_steps": 50,
            "save_steps": 100,
        },
        "device": "NVIDIA H200",
        "host": "gpu-1",
        "versions": {"tunesmith": "0.1.0", "torch": "2.9.1", "trl": "1.7.1"},
        "throughput": {
            "seconds": 277.1,
            "steps_per_second": 1.8,
            "input_tokens": 4_096_000,
            "trained_tokens": 1_310_720,
            "tokens_per_second": 14_781.67,
            "trained_tokens_per_second": 4_730.13,
            "slots": 4_096_000,
            "padding_share": 0.0,
            "micro_batches": 1000,
        },
        "peak_memory": {
            "allocated": 41_234_567_168,
            "reserved": 43_986_714_624,
            "device_total": 150_754_820_096,
            "pinned": 4_194_304,
            "rss": 3_221_225_472,
        },
        "utilization": {
            "mfu": 0.4512,
            "reason": "4 P + 6 P_lora + attention FLOPs per token, P = 7,504,658,432, "
            "P_lora = 41,943,040, over 989.4 TFLOP/s of NVIDIA H200",
            "model_flops": 1.237e17,
            "peak_tflops": 989.4,
        },
        "device_waits_share": 0.0,
        "bound": {
            "by": "device_compute",
            "text": "forward, backward and optimiser: 273.6 of 400.0 s, more than any other part",
        },
        "saturation": {
            "state": "saturated",
            "text": "GPU is already saturated; more rows would only add memory: of the "
            "267.0 ms of a micro-batch (4,096 token positions), 3.1 ± 4.0 ms do not depend on its "
            "size",
            "doubling_gain": 0.0058,
        },
        "advice": {
            "rule": "evaluation",
            "text": "recipe.eval_steps=350: evaluation took 104.0 of 400.0 s; saves at most 22% of "
            "the 400.0 s",
            "gain_share": 0.2229,
        },
    }
)

REINFORCEMENT_EXAMPLE: Mapping[str, JsonValue] = MappingProxyType(
    {
        **REPORT_EXAMPLE,
        "job_id": "ftjob-89abcdef0123456789abcdef",
        "phases": {
            **{"claim": 0.02, "download": 0.35, "spawn": 0.2, "import": 6.1, "load": 3.4},
            **{"data": 1.1, "plan": 0.03, "setup": 1.2, "self_check": 4.1, "data_wait": 0.4},
            **{"sync": 3.2, "generate": 246.0, "grade": 1.9, "forward": 34.6, "backward": 88.0},
            **{"optimizer": 2.4, "checkpointing": 2.1, "logging": 0.6, "train": 1.2, "save": 0.5},
            **{"exit": 0.6, "upload": 1.5, "other": 0.5},
        },
        "steps": 100,
        "total_steps": 100,
        "settings": {
            **{"tuning": "lora", "precision": "bf16", "per_device_train_batch_size": 128},
            **{"gradient_accumulation_steps": 1, "packing": False, "layout": "padding_free"},
            **{"gradient_checkpointing": False, "logging_steps": 1, "save_steps": 50},
        },
        "throughput": {
            "seconds": 378.3,
            "steps_per_second": 0.26,
            "input_tokens": 4_864_000,
            "trained_tokens": 4_096_000,
            "tokens_per_second": 12_857.52,
            "trained_tokens_per_second": 10_827.39,
            "slots": 4_864_000,
            "padding_share": 0.0,
            "micro_batches": 100,
            "generated_tokens": 4_096_000,
            "generated_tokens_per_second": 10_827.39,
        },
        "rollouts": {
            "rounds": 100,
            "num_iterations": 1,
            "completions": 12_800,
            "generated_tokens": 4_096_000,
            "tokens_per_second": 16_650.41,
            "decode_steps": 51_200,
            "graph_steps": 50_300,
            "mean_length": 320.0,
            "longest": 512,
            "truncated_share": 0.08,
            "idle_share": 0.0108,
            "ungraded_share": 0.0,
            "zero_std_share": 0.19,
            "layout": "shared",
            "token_ratio": 1.7895,
            "engine": "native",
            "weights": "merged",
        },
        "bound": {
            "by": "generation",
            "text": "generating completions: 249.2 of 400.0 s, more than any other part (12,800 "
            "completions, 320 tokens each at 16,650 tokens/s)",
        },
        "saturation": {
            "state": "not_measured",
            "text": "not measured: all micro-batches have about 48,640 token positions",
        },
        "advice": {
            "rule": "generation",
            "text": "recipe.grpo.num_iterations=2 (two steps on the same completions) or a lower "
            "recipe.grpo.max_completion_length: generating took 249.2 of 400.0 s; saves at most "
            "31% of the 400.0 s",
            "gain_share": 0.3115,
        },
        "utilization": {
            "mfu": 0.4688,
            "reason": "4 P + 6 P_lora + attention FLOPs per token, P = 3,000,000,000, P_lora = "
            "20,000,000, over 989.4 TFLOP/s of NVIDIA H200",
            "model_flops": 5.9e16,
            "peak_tflops": 989.4,
        },
    }
)
"""Example of a reinforcement report: `REPORT_EXAMPLE` with other values."""
