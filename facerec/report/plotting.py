"""What all figures share: colours, marks, letters, files, and their place in a page.

Groups, arms and results keep their order, colour, marker and line in all figures of a report.
Every estimate is drawn with its interval. Equal figures give equal bytes.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which most colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Line = Literal["-", "--", "-.", ":"]
LINES: tuple[Line, ...] = ("-", "--", "-.", ":")
SOFT = "0.35"
"""Grey of what explains."""
SMALL = 8.5
"""Smallest letters in a figure, points: 11 pixels in a page, which shows figures in their size."""


@dataclass(frozen=True)
class Style:
    """How a group, an arm or a result is drawn."""

    name: str
    colour: str
    marker: str
    line: Line


def styles(names: Sequence[str]) -> tuple[Style, ...]:
    """Give every name a colour, a marker and a line; 56 names differ in one of the first two."""
    return tuple(
        Style(
            label(name),
            COLOURS[index % len(COLOURS)],
            MARKERS[index % len(MARKERS)],
            LINES[index // len(COLOURS) % len(LINES)],
        )
        for index, name in enumerate(names)
    )


def label(name: str, width: int = 24) -> str:
    """Return a name as two short lines at most, without what no font can draw."""
    plain = "".join(letter if letter.isprintable() else "�" for letter in " ".join(name.split()))
    return "\n".join(textwrap.wrap(plain, width, max_lines=2, placeholder=" …")) or "–"


# --- axes -------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure, width and height in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes) -> None:
    """Leave of axes what is needed to read them."""
    axes.grid(True, which="major", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def verbatim(texts: Axis | Legend) -> None:
    """Keep names with dollars from being taken for formulas."""
    for text in texts.get_texts() if isinstance(texts, Legend) else texts.get_ticklabels():
        text.set_parse_math(False)


def note(axes: Axes, text: str, width: int = 90) -> None:
    """Say above axes what their marks are."""
    lines = "\n".join(textwrap.fill(line, width) for line in text.splitlines())
    axes.set_title(lines, fontsize=SMALL, color=SOFT, loc="left", parse_math=False)


def beside(axes: Axes, row: float, text: str) -> None:
    """Write small text at the right end of a row of a forest."""
    axes.annotate(
        text,
        (1.0, row),
        (4, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        fontsize=SMALL,
        color=SOFT,
        va="center",
        annotation_clip=False,
    )


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Give a forest its rows, the first one at the top."""
    axes.set_yticks(range(len(names)), list(names), fontsize=SMALL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=SMALL)
    verbatim(axes.yaxis)


def filled(style: Style, *marks: str) -> dict[str, Any]:
    """Return how a marker is filled: full for ●, half for ◐, hollow for ○, of several the least."""
    least = min(marks, key="○◐●".index)
    return {
        "color": style.colour,
        "fillstyle": "left" if least == "◐" else "full",
        "markerfacecolor": "white" if least == "○" else style.colour,
        "markerfacecoloralt": "white",
    }


def percent_axis(axis: Axis) -> None:
    """Mark an axis of shares in percent, with no more decimals than the marks need."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:.6g} %")


def legend(figure: Figure, shown: Sequence[Style], title: str | None = None) -> None:
    """Put a legend below a figure, which grows where names take many lines."""
    handles = [
        Line2D([], [], color=one.colour, ls=one.line, marker=one.marker, ms=5, label=one.name)
        for one in shown
    ]
    drawn = figure.legend(
        handles=handles,
        loc="outside lower center",
        frameon=False,
        fontsize=SMALL,
        ncols=min(len(handles), 4),
        title=title,
        title_fontsize=SMALL,
    )
    verbatim(drawn)
    lines = sum(
        1 + max(style.name.count("\n") for style in shown[start : start + 4])
        for start in range(0, len(shown), 4)
    )
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, lines - 2))


# --- files ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """A figure in a page, and what it shows in words."""

    picture: str
    """Data URI."""
    alt: str
    caption: str
    kind: ClassVar[str] = "drawing"


class Drawings:
    """Draws figures, keeps their files, and returns what shows them in a page.

    Attributes:
        files: path inside the report → contents.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def draw(self, name: str, figure: Figure | None, alt: str, caption: str) -> list[Drawing]:
        """Draw a figure as SVG and PNG and return the block that shows it; none if it is None."""
        if figure is None:
            return []
        picture = draw(figure, "svg")
        # Laid out once, it need not be again.
        figure.set_layout_engine("none")
        path = f"figures/{name}"
        self.files |= {f"{path}.svg": picture, f"{path}.png": draw(figure, "png")}
        return [Drawing(data_uri("image/svg+xml", picture), alt, caption)]


def draw(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of the format ``png``, ``svg`` or ``pdf``."""
    # Without a date and random ids the same results give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    content = io.BytesIO()
    figure.set_dpi(150)
    canvas = get_registered_canvas_class(kind)(figure)
    with matplotlib.rc_context({"svg.hashsalt": "facerec"}):
        # Not savefig, which draws everything once more beforehand to find the layout.
        getattr(canvas, f"print_{kind}")(content, metadata=metadata)
    return content.getvalue()


def data_uri(kind: str, content: bytes) -> str:
    """Return content as the address of an image inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def slug(number: int, name: str) -> str:
    """Return a file name for a thing; the number keeps names apart that become alike."""
    return f"{number}-{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:60]}"
