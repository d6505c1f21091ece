"""A race planned before it is run: every contender's config through the planner, at the costs that an earlier run has measured."""

from __future__ import annotations

import time
from typing import Any

from headrace.compare.races.race_form import Draft
from headrace.experiments import foresight
from headrace.experiments.foresight_words import TRAINER, percent, short
from headrace.teams.models import Team

LONGEST_S = 25.0
LATER = "Not yet: planning stopped here so that you need not wait. Plan again for the rest."


def planned(draft: Draft, team: Team) -> dict[str, Any]:
    """Called by the race form's button "Plan it first". {rows, source, unlike}; a contender that cannot be planned has `why` in its row.

    What was planned before is there at once, so that pressing again goes on where time ran out. Empty for a form with faults.
    """
    if draft.spec is None or not draft.sound:
        return {}
    rows, source, unlike, ends = [], None, False, time.monotonic() + LONGEST_S
    for contender, config in zip(draft.spec.contenders, draft.configs, strict=True):
        if time.monotonic() > ends:
            rows.append({"label": contender.label, "why": LATER})
            continue
        found = foresight.answer(team, config)
        source = source or (found["source"] if found["predicted"] else None)
        unlike = unlike or bool(found["predicted"] and found["predicted"]["unlike"])
        rows.append({"label": contender.label, "why": found["why"], **_figures(found["predicted"])})
    whys = {row["why"] for row in rows}
    if len(whys) == 1 and None not in whys:  # the same for all is said once
        return {"rows": [], "why": whys.pop(), "source": None}
    return {"rows": rows, "source": source, "unlike": unlike}


def _figures(predicted: dict[str, Any] | None) -> dict[str, str]:
    if predicted is None:
        return {}
    trainer, lag, overlap = predicted["idle"][TRAINER], predicted["lag"]["mean"], predicted["overlap"]
    return {
        "samples": short(predicted["samples_per_s"]),
        "step": short(predicted["step_s"]),
        "overlap": "–" if overlap is None else percent(overlap),
        "lag": "–" if lag is None else f"{lag:.2f}",
        "idle": "–" if trainer is None else percent(trainer["share"]),
    }
