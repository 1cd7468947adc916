"""What MkDocs needs to know of this repository: pages from outside ``docs/`` and their links.

Every page is written so that its links work where it lies, in the repository. Here the pages that
lie outside ``docs/`` join the site, and links follow them.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SOURCES = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "BROADER_IMPACT.md": "broader-impact.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside ``docs/``, and where they are in the site."""

PACKAGES = (
    "records",
    "backbones",
    "heads",
    "statistics",
    "embedding",
    "report",
    "training",
    "verification",
    "export",
    "fairness",
    "galleries",
    "comparison",
)
"""Packages with a page of reference each."""

LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs/`` and the reference."""
    for source, page in SOURCES.items():
        files.append(File.generated(config, page, content=Path(source).read_text("utf-8")))
    for package in PACKAGES:
        text = f"# facerec.{package}\n\n::: facerec.{package}\n"
        files.append(File.generated(config, f"reference/{package}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site; to any other file of the repository there is none."""
    here = page.file.src_uri
    source = {site: source for source, site in SOURCES.items()}.get(here, f"docs/{here}")

    def relink(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not path.startswith("docs/") and path not in SOURCES:
            return text[1:-1]
        path = SOURCES.get(path, path.removeprefix("docs/"))
        return f"{text}({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor or ''})"

    return markdown if here.startswith("reference/") else LINK.sub(relink, markdown)
