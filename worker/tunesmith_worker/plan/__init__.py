"""Decides what a recipe leaves open, and writes down why."""

from .choices import Choices, DataPlan, Device, LoadPlan, TrainPlan
from .layout import COMPILED, Layout, LayoutPlan, plan_layouts
from .layout_trial import LayoutTrial
from .settle import plan_data, plan_load, plan_patches, plan_train

__all__ = [
    "COMPILED",
    "Choices",
    "DataPlan",
    "Device",
    "Layout",
    "LayoutPlan",
    "LayoutTrial",
    "LoadPlan",
    "TrainPlan",
    "plan_data",
    "plan_layouts",
    "plan_load",
    "plan_patches",
    "plan_train",
]
