"""Decides what a recipe leaves open, and writes down why."""

from .choices import Choices, DataPlan, Device, LoadPlan, TrainPlan
from .layout import COMPILED, Layout, LayoutPlan, plan_layouts
from .layout_trial import LayoutTrial
from .settle import plan_data, plan_load, plan_patches, plan_train
from .settle_grpo import GRPOPlan, plan_grpo, plan_grpo_train, prompt_limit

__all__ = [
    "COMPILED",
    "Choices",
    "DataPlan",
    "Device",
    "GRPOPlan",
    "Layout",
    "LayoutPlan",
    "LayoutTrial",
    "LoadPlan",
    "TrainPlan",
    "plan_data",
    "plan_grpo",
    "plan_grpo_train",
    "plan_layouts",
    "plan_load",
    "plan_patches",
    "plan_train",
    "prompt_limit",
]
