"""Reads a page as a reader sees it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """The text and tables of a page; all of its elements must be closed.

    Attributes:
        attributes: tags with their attributes, in order.
        text: what a reader sees, without styles and scripts.
        tables: captions and rows of cells, in order; a cell's small print follows after a space.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.feed(text)
        self.close()
        assert self.tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.tags.append(tag)
        if tag == "table":
            self.tables.append(("", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
        elif tag == "small":
            self.tables[-1][1][-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.tags or "script" in self.tags:
            return
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        self.text += data
        if "caption" in self.tags:
            self.tables[-1] = (self.tables[-1][0] + data, self.tables[-1][1])
        elif "td" in self.tags or "th" in self.tags:
            self.tables[-1][1][-1][-1] += data.strip()

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a kind."""
        return [attributes for name, attributes in self.attributes if name == tag]

    def rows(self, caption: str, place: int = 0) -> list[list[str]]:
        """Return the rows of the table with a caption, or beginning with it; of many one."""
        exact = [rows for title, rows in self.tables if title == caption]
        return (exact or [rows for title, rows in self.tables if title.startswith(caption)])[place]
