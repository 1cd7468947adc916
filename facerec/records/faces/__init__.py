"""Generated faces: a subject's parameters, the circumstances of one photo, and the renderer."""

from facerec.records.faces.parameters import (
    CONDITIONS,
    Conditions,
    Identity,
    Nuisance,
    draw_identity,
    draw_nuisance,
    restyle,
)
from facerec.records.faces.renderer import TEMPLATE, encode, render

__all__ = [
    "CONDITIONS",
    "TEMPLATE",
    "Conditions",
    "Identity",
    "Nuisance",
    "draw_identity",
    "draw_nuisance",
    "encode",
    "render",
    "restyle",
]
