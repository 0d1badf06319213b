"""How the demo trains, and why so. Found by trying, on two shared CPU cores."""

from __future__ import annotations

from tunesmith_schema import GRPORecipe, LoraRecipe, Recipe

SEED = 1
"""World, shuffling and weights: the same numbers on each run, but for rounding."""

PRETRAIN = Recipe(
    tuning="full",
    from_scratch=True,
    # High, as the model is tiny and knows nothing. It first answers everybody with the average
    # inhabitant, and leaves that plateau only with a high rate and large batches: in an early
    # form of this world 16 rows a step were still there after 700 steps, 48 left it at 100.
    learning_rate=5e-3,
    warmup_steps=20,
    per_device_train_batch_size=48,
    gradient_accumulation_steps=1,
    # 29 epochs of 640 rows. After 280 steps 4 % of the answers still had a wrong fact, and LoRA,
    # which moves all answers a little, made that 27 %.
    max_steps=400,
    eval_steps=40,
    logging_steps=4,
)

LORA = Recipe(
    tuning="lora",
    # alpha = 2 r, so that a small adapter moves far enough in few steps.
    lora=LoraRecipe(r=16, lora_alpha=32),
    # Ten times the usual 2e-4: the adapted matrices are 128 wide, not thousands.
    learning_rate=2e-3,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=1,
    # Validation loss is flat after 24 steps.
    max_steps=40,
    eval_steps=4,
)

GRPO = Recipe(
    tuning="lora",
    lora=LoraRecipe(r=16, lora_alpha=32),
    # Half of LoRA's above: what is drawn changes with each step. The reward was 0.95 to
    # 0.98 at step 5, on all of three seeds.
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
        for fact in ("animal", "home", "food")
    },
    "calculate_output": "(animal + home + food) / 3",
}
"""A third for each fact that is right in an answer that is JSON; prose is worth nothing."""

# A real model: what the trainer chooses by itself suits it.
OWN_MODEL = Recipe(tuning="lora")


def at_most(recipe: Recipe, max_steps: int | None) -> Recipe:
    """The recipe, cut to `max_steps` when the user asked for that."""
    if max_steps is None:
        return recipe
    own = recipe.max_steps
    steps = max_steps if own == "auto" else min(max_steps, own)
    changed: dict[str, object] = {"max_steps": steps}
    if recipe.warmup_steps != "auto":
        changed["warmup_steps"] = min(recipe.warmup_steps, steps // 10)
    if recipe.eval_steps != "auto":
        changed["eval_steps"] = max(1, steps // 10)
    return recipe.model_copy(update=changed)
