"""Which experts vLLM chose, position by position, noted in its own worker.

vLLM 0.32 tells it outright only in its second model runner, which needs a GPU. In the first one, this listens to its routers and
knows from the batch whose token each row is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from workers.rollout.torch.experts import RoutingRecord


class Routes:
    """Made once in a worker, when its model is loaded. Keeps the records of requests under way, and of ended ones until they are taken.

    runner: vLLM's `GPUModelRunner` or `CPUModelRunner`.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._records: dict[str, RoutingRecord] = {}
        routers = [module.router for module in runner.model.modules() if hasattr(getattr(module, "router", None), "set_capture_fn")]
        self._chosen: list[torch.Tensor] = [torch.empty(0)] * len(routers)
        for layer, router in enumerate(routers):
            router.set_capture_fn(partial(self._chosen.__setitem__, layer))
        self._forward = runner._model_forward
        runner._model_forward = self._listening

    def take(self, request: str) -> tuple[int, str]:
        """How many tokens vLLM computed for this request, and their experts as `Rollout.routing`."""
        record = self._records.pop(request, RoutingRecord())
        return record.positions, record.encode()

    def _listening(self, *given: Any, **named: Any) -> Any:
        output = self._forward(*given, **named)
        batch, starts = self._runner.input_batch, self._runner.query_start_loc.np
        chosen = torch.stack(self._chosen, dim=1).to(torch.uint8)  # (rows, layers, k)
        present = [_own_name(name) for name in batch.req_ids]
        for row, name in enumerate(present):
            record = self._records.setdefault(name, RoutingRecord())
            record.add(int(batch.num_computed_tokens_cpu[row]), chosen[starts[row] : starts[row + 1]].clone())
        self._forget(set(present))
        return output

    def _forget(self, present: set[str]) -> None:
        """A request whose caller went away is never taken: of those that have ended, as many as could have ended at once are kept."""
        ended = [name for name in self._records if name not in present]
        for name in ended[: max(0, len(ended) - self._runner.max_num_reqs)]:
            del self._records[name]


def _own_name(name: str) -> str:
    """vLLM appends a random part to a request's name."""
    return name.rsplit("-", 1)[0]
