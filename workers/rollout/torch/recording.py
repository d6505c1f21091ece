"""What a sample's training replays: the ids that truncated sampling left, and the experts chosen. Recorded only where asked for."""

from __future__ import annotations

from workers.contract.config import Replay
from workers.contract.errors import ConfigError, EngineError
from workers.records import SampleRequest
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

    r2 replays the trainer's own choice, so that the engine has nothing to tell. Raises EngineError for a sample taken up again
    whose record is gone: tokens drawn from a part of the vocabulary must not pass for drawn from all of it.
    """
    request = sequence.request
    if request.purpose != "train":
        return
    if options.sampling_mask and truncates(request.temperature, request.top_k, request.top_p, request.min_p):
        sequence.support = [list(ids) for ids in request.prefix_support or []]
        _complete("sampling_mask", len(sequence.support), request)
    if options.routing == "r3":
        _complete("routing", len(request.prefix_ids) if request.prefix_routing else 0, request)
        # A sample that was aborted before it ran has no record yet.
        record = request.prefix_routing if request.prefix_ids else None
        sequence.routing = RoutingRecord(record, len(request.prompt_ids) + len(request.prefix_ids) - 1)


def _complete(what: str, recorded: int, request: SampleRequest) -> None:
    if recorded != len(request.prefix_ids):
        raise EngineError(
            f"a prefix of {len(request.prefix_ids)} tokens came with the record of {recorded}",
            field=f"replay.{what}",
            value=request.id,
            cure="send the sample again from its prompt",
        )
