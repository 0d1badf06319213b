"""Train the embedding and the head: token rows, new tokens, whole matrices, learning rate."""

from .learning_rate import embedding_learning_rate, embedding_parameters, set_learning_rate
from .matrices import Matrices
from .new_tokens import NewTokens, add_tokens
from .token_rows import train_token_rows, used_tokens
from .whole_matrices import WholeMatrices, keep_in_fp32, whole_matrices

__all__ = [
    "Matrices",
    "NewTokens",
    "WholeMatrices",
    "add_tokens",
    "embedding_learning_rate",
    "embedding_parameters",
    "keep_in_fp32",
    "set_learning_rate",
    "train_token_rows",
    "used_tokens",
    "whole_matrices",
]
