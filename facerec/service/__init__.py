"""The HTTP service: embeddings, comparisons and a gallery; ``facerec serve`` runs it."""
