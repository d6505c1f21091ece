"""The results of a race as CSV: a row for each figure of each entry, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any

from headrace.compare.races import selectors

HEAD = ("race", "contender", "preset", "seed", "run", "state", "reused", "figure", "at", "at_unit", "value", "unit")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def table(whole: selectors.Whole) -> str:
    """Entries without a finished run have one row, with no figure."""
    found = selectors.result(whole)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEAD)
    rows = (*found["headlines"], *found["rows"])
    for entry in sorted(whole.entries, key=lambda one: (one.contender, one.seed)):
        contender = whole.spec.contenders[entry.contender]
        state = entry.run.state if entry.run else selectors.WAITING
        run = entry.run.public_id if entry.run else ""
        head = (whole.race.name, contender.label, contender.preset, entry.seed, run, state, "yes" if entry.reused else "no")
        written = 0
        for row in rows:
            cell = row["cells"].get(contender.label)
            value = cell["seeds"].get(str(entry.seed)) if cell else None
            if value is None:
                continue
            at = row.get("at")
            writer.writerow(
                [safe(item) for item in (*head, row["title"], at if at is not None else "", row.get("at_unit", ""), value, row["unit"])]
            )
            written += 1
        if not written:
            writer.writerow([safe(item) for item in (*head, "", "", "", "", "")])
    return out.getvalue()


def safe(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it; numbers stay numbers."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value
