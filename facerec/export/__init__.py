"""Export: a backbone → one ONNX file, its variants, and the proof that every consumer agrees."""

from typing import TYPE_CHECKING

from facerec.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.export.consumers import ConsumerRow, check_consumers, legacy_router_simulation
    from facerec.export.graph import export_graph, graph_preprocessing
    from facerec.export.parity import Bar, ParityRow, check_parity, sample_faces
    from facerec.export.variants import VARIANTS, Variant, make_variant
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "VARIANTS",
    "Bar",
    "ConsumerRow",
    "ParityRow",
    "Variant",
    "check_consumers",
    "check_parity",
    "export_graph",
    "graph_preprocessing",
    "legacy_router_simulation",
    "make_variant",
    "sample_faces",
]
