"""Embedding: a model file and images → raw embeddings."""

from facerec.embedding.extract import Embeddings, extract
from facerec.embedding.model import (
    EmbeddingModel,
    OnnxModel,
    TorchModel,
    load_model,
    load_state_dict_file,
    newest_run,
    save_model,
)

__all__ = [
    "EmbeddingModel",
    "Embeddings",
    "OnnxModel",
    "TorchModel",
    "extract",
    "load_model",
    "load_state_dict_file",
    "newest_run",
    "save_model",
]
