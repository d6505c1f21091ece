"""axe-core in a page: WCAG 2.2 A and AA, and its best practices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SOURCE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text(encoding="utf-8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
RUN = "([part, rules]) => axe.run(part, {runOnly: rules, resultTypes: ['violations']}).then(found => found.violations)"


def axe_faults(page: Page, part: str = "html", *, colours_only: bool = False) -> list[str]:
    """A line for each rule that `part` of the open page breaks: rule, the first element, what it says. Empty: nothing is wrong.

    colours_only: for a page that has passed in another colour scheme, and differs from that in nothing else.
    """
    page.evaluate(SOURCE + "; 1")
    rules = {"type": "rule", "values": COLOURS} if colours_only else {"type": "tag", "values": TAGS}
    found: list[dict[str, Any]] = page.evaluate(RUN, [part, rules])
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:200]}" for one in found]
