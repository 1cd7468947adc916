"""Embedding: a model file and images → raw embeddings, in memory or in a file."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings, embed_images, extract
    from facerec.embedding.file import read_embeddings, write_embeddings
    from facerec.embedding.loading import load_model
    from facerec.embedding.model import EmbeddingModel, OnnxModel
    from facerec.embedding.torch_model import TorchModel, load_state_dict_file, save_model
else:
    __getattr__, __all__ = lazy_names(__name__)
