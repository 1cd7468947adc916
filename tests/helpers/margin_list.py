"""Margins without a state of their own, with every option that changes a formula."""

from __future__ import annotations

from facerec.heads import (
    ArcFace,
    CombinedMargin,
    CosFace,
    Margin,
    Softmax,
    SphereFace,
    SphereFace2017,
    SphereFaceR,
)

MARGINS: list[Margin] = [
    Softmax(),
    CosFace(),
    *(ArcFace(wrap=wrap) for wrap in ("fold", "linear", "clamp", "none", "easy")),
    ArcFace(gradient="straight_through"),
    CombinedMargin(m1=0.9, m2=0.4, m3=0.15),
    SphereFace(),
    SphereFace2017(),
    SphereFaceR(version="v1"),
    SphereFaceR(version="v2"),
]
