"""Decides what a recipe leaves open, and writes down why."""

from .choices import Choices, DataPlan, Device, LoadPlan, TrainPlan
from .settle import plan_data, plan_load, plan_patches, plan_train

__all__ = [
    "Choices",
    "DataPlan",
    "Device",
    "LoadPlan",
    "TrainPlan",
    "plan_data",
    "plan_load",
    "plan_patches",
    "plan_train",
]
