"""Recipes of the demo's jobs, with the reason for each setting.

The settings were tested on two shared CPU cores."""

from __future__ import annotations

from tunesmith_schema import GRPORecipe, LoraRecipe, Recipe

from .world import FACTS

SEED = 1
"""Seed of the invented data, the order of the rows and the initial weights."""

PRETRAIN = Recipe(
    tuning="full",
    from_scratch=True,
    # At first, a tiny untrained model gives the same average answer for every inhabitant.
    # Only a high learning rate and large batches end this plateau of the loss.
    # With an earlier world, 100 steps of 48 rows were enough, but 700 steps of 16 rows were not.
    learning_rate=5e-3,
    warmup_steps=20,
    per_device_train_batch_size=48,
    gradient_accumulation_steps=1,
    # 400 steps are 29 epochs of 640 rows.
    # After only 280 steps, 4 % of the answers had a wrong fact, and LoRA raised the share to 27 %.
    max_steps=400,
    eval_steps=40,
    logging_steps=4,
)

LORA = Recipe(
    tuning="lora",
    # alpha = 2 r, so that a small adapter changes the model enough in few steps.
    lora=LoraRecipe(r=16, lora_alpha=32),
    # Ten times the usual 2e-4, because the matrices are only 128 wide.
    learning_rate=2e-3,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=1,
    # The validation loss is flat after 24 steps.
    max_steps=40,
    eval_steps=4,
)

GRPO = Recipe(
    tuning="lora",
    lora=LoraRecipe(r=16, lora_alpha=32),
    # Half of LoRA's learning rate, because the model's own completions change at each step.
    # The reward was 0.95 to 0.98 at step 5 with three seeds.
    learning_rate=1e-3,
    max_steps=20,
    eval_steps=5,
    grpo=GRPORecipe(prompts_per_step=12, num_generations=8, max_completion_length=48),
)
GRADER = {
    "type": "multi",
    "name": "facts_as_json",
    "graders": {
        fact: {
            "type": "string_check",
            "operation": "eq",
            "input": f"{{{{sample.output_json.{fact}}}}}",
            "reference": f"{{{{item.{fact}}}}}",
        }
        for fact in FACTS
    },
    "calculate_output": "(animal + home + food) / 3",
}
"""The reward is 1/3 for each correct fact in a JSON answer, and 0 for an answer in prose."""
