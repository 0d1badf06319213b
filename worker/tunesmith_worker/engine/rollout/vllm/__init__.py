"""Rollout engine that uses vLLM, in the trainer's process or as a server."""

from .engine import VLLMEngine
from .plan import plan_vllm_rollout, server_address

__all__ = ["VLLMEngine", "plan_vllm_rollout", "server_address"]
