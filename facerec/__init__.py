"""facerec: train, verify, export and audit face embeddings."""

__version__ = "0.1.0"
