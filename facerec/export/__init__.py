"""Export: a backbone → one ONNX file, its int8 variant, and the proof that consumers agree."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.export.consumers import ConsumerRow, check_consumers
    from facerec.export.graph import export_graph, graph_preprocessing
    from facerec.export.parity import ParityRow, check_parity, sample_faces
    from facerec.export.quantize import quantize_int8
else:
    __getattr__, __all__ = lazy_names(__name__)
