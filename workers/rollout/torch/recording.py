"""What a sample's training replays: the ids that truncated sampling left, and the experts chosen. Recorded only where asked for."""

from __future__ import annotations

from workers.contract.config import Replay
from workers.contract.errors import ConfigError
from workers.rollout.torch.experts import RoutingRecord
from workers.rollout.torch.sampling import truncates
from workers.rollout.torch.scheduler import Sequence
from workers.rollout.torch.shape import Shape


def check_recording(options: Replay, shape: Shape) -> None:
    """Called once, at start. Raises ConfigError where routing is to be kept of a model that does not route."""
    if options.routing != "off" and shape.experts is None:
        raise ConfigError(
            f"{shape.architecture} has no experts whose choice could be kept",
            field="replay.routing",
            value=options.routing,
            cure="set replay.routing to off, or choose a mixture-of-experts model",
        )


def begin(sequence: Sequence, options: Replay) -> None:
    """Called with each request before it is queued. An evaluation is never trained on: nothing of it is recorded.

    r2 replays the trainer's own choice, so that the engine has nothing to tell.
    """
    request = sequence.request
    if request.purpose != "train":
        return
    if options.sampling_mask and truncates(request.temperature, request.top_k, request.top_p, request.min_p):
        sequence.support = [list(ids) for ids in request.prefix_support or [[]] * len(request.prefix_ids)]
    if options.routing == "r3":
        sequence.routing = RoutingRecord(request.prefix_routing, len(request.prompt_ids) + len(request.prefix_ids) - 1)
