"""The embedding and the head: token rows, new tokens, whole matrices by consent, their rate."""

from .matrices import Matrices
from .new_tokens import NewTokens, add_tokens
from .rate import embedding_parameters, embedding_rate, give_rate
from .rows import train_token_rows, used_tokens
from .whole import WholeMatrices, keep_in_fp32, whole_matrices

__all__ = [
    "Matrices",
    "NewTokens",
    "WholeMatrices",
    "add_tokens",
    "embedding_parameters",
    "embedding_rate",
    "give_rate",
    "keep_in_fp32",
    "train_token_rows",
    "used_tokens",
    "whole_matrices",
]
