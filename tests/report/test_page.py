"""A page runs nothing, and shows every name as it is."""

from __future__ import annotations

import base64
import hashlib
import re

from facerec.report.page import FindingLine, Listed, Page, Section
from facerec.report.table import Table

EVIL = "<script>alert(1)</script>"


def page(*blocks: object, banner: str = "") -> str:
    finding = FindingLine(EVIL, "η² 0.1", "[0, 0.2]", "difference detected", EVIL, EVIL)
    section = Section(EVIL, blocks, EVIL)  # type: ignore[arg-type]
    return Page(EVIL, EVIL, EVIL, [finding], [EVIL], [section], banner).render()


def test_no_block_lets_a_name_through() -> None:
    table = Table(EVIL, [EVIL], [[EVIL]], remarks=[EVIL])
    blocks = [table, EVIL, Listed([EVIL]), Listed([EVIL], "notes"), {EVIL: EVIL}]
    html = page(*blocks, banner=EVIL)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 2 * len(blocks)
    assert "script-src" not in html


def test_no_name_turns_the_figures_behind_it_round() -> None:
    evil = "\x1b[31m\u202eabc"
    table = Table(evil, [evil], [[evil]])
    html = page(table, evil, Listed([evil]), {evil: evil}, banner=evil)
    assert html.count("abc") > 5 and "\x1b" not in html and "\u202e" not in html


def test_the_policy_admits_the_style_by_hash_and_no_script() -> None:
    html = page(EVIL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None and "unsafe" not in policy[1] and "script-src" not in policy[1]
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy[1] and "<script" not in html


def test_findings_come_before_all_sections() -> None:
    html = page("later")
    assert html.index("difference detected") < html.index("later")
