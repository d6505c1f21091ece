"""Models that the loss reads and that do not learn: the policy before training, and a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workers import models
from workers.axes.backend import logprobs
from workers.axes.backend.layout import MicroBatch
from workers.axes.backend.passes import check_layout, forward
from workers.axes.lora.base import Adapters
from workers.contract.config import Distillation, RunConfig
from workers.contract.errors import EngineError, HeadraceError
from workers.learn.distillation import jsd

Other = Literal["reference", "teacher"]
TEACHER = "loss.distillation.teacher"


class Others:
    """Constructed once a run, after the adapters. Loads a frozen copy of the model only where there is no adapter to switch off,
    and any model only where the loss reads it.

    scored: whose log-probs of the sampled tokens are wanted, once for each batch, before its first optimizer step.
    diverges: whether the loss has a distance to the teacher over the full vocabulary, which needs the teacher in every step.
    """

    def __init__(self, config: RunConfig, model: Any, adapters: Adapters) -> None:
        loss = config.loss
        self._temperature = config.sampling.temperature
        self._model = model
        self._adapters = adapters
        self._distillation = loss.distillation
        self._loaded: dict[Other, Any] = {}
        scored: list[Other] = []
        if loss.kl is not None and loss.kl.coefficient > 0:
            scored.append("reference")
            if adapters.reference() is None:
                self._loaded["reference"] = _load(config.model.path, model.dtype)
        if loss.distillation is not None:
            self._loaded["teacher"] = _teacher(loss.distillation, model)
            if loss.distillation.kind == "reverse_kl":
                scored.append("teacher")
        self.scored = tuple(scored)
        self.diverges = loss.distillation is not None and loss.distillation.kind == "jsd"

    def switch(self, name: Other) -> AbstractContextManager[None] | None:
        """Inside it, the trainer's own pass is the other model's. None where that is a model of its own: see `logprobs`."""
        return None if name in self._loaded else self._adapters.reference()

    def logprobs(self, name: Other, micro: MicroBatch) -> Tensor:
        """(N,) log-probs of the micro-batch's tokens by a model of its own, over the same support. No gradient."""
        with torch.no_grad():
            return forward(self._loaded[name], self._suited(name, micro), self._temperature)[0]

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """Around a learning pass: the list receives the hidden states (R, L, H) that the trainer's head reads, gradient and all."""
        seen: list[Tensor] = []
        if not self.diverges:
            yield seen
            return
        with _watching(self._model, seen):
            yield seen

    def divergence(self, micro: MicroBatch, seen: list[Tensor]) -> Tensor | None:
        """(B, T) generalised Jensen-Shannon divergence at each token, from what `watched` saw; None where the loss has none.

        By pieces of the tokens: logits of student and teacher are made again in the backward pass, never kept for all of them.
        """
        if not self.diverges or self._distillation is None:
            return None
        teacher = self._loaded["teacher"]
        from_teacher: list[Tensor] = []
        with torch.no_grad(), _watching(teacher, from_teacher):
            forward(teacher, self._suited("teacher", micro), self._temperature)
        student_hidden, teacher_hidden = (hidden[0].flatten(0, 1)[micro.source] for hidden in (seen, from_teacher))
        student_head, teacher_head = self._model.get_output_embeddings(), teacher.get_output_embeddings()
        piece = partial(_piece, student_head, teacher_head, self._temperature, self._distillation.beta)
        step = max(1, logprobs.CHUNK_BYTES // (4 * int(teacher_head.weight.shape[0])))
        parts = [
            checkpoint(piece, one, other, use_reentrant=False)
            for one, other in zip(torch.split(student_hidden, step), torch.split(teacher_hidden, step), strict=True)
        ]
        return micro.spread(torch.cat(parts))

    def _suited(self, name: Other, micro: MicroBatch) -> MicroBatch:
        """A teacher routes by itself: recorded experts are those of another model."""
        return replace(micro, routing=None) if name == "teacher" else micro


def _piece(student_head: Any, teacher_head: Any, temperature: float, beta: float, student: Tensor, teacher: Tensor) -> Tensor:
    """(n,) divergences from hidden states (n, H), (n, H')."""
    work = torch.promote_types(student.dtype, torch.float32)
    ours = (student_head(student).to(work) / temperature).log_softmax(dim=-1)
    theirs = (teacher_head(teacher).to(work) / temperature).log_softmax(dim=-1)
    return jsd(ours, theirs, beta)


@contextmanager
def _watching(model: Any, seen: list[Tensor]) -> Iterator[None]:
    hook = model.base_model.register_forward_hook(lambda _, __, output: seen.append(output.last_hidden_state))
    try:
        yield
    finally:
        hook.remove()


def _load(path: str, dtype: torch.dtype) -> Any:
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(models.locate(path), dtype=dtype, attn_implementation="sdpa")
    return model.eval().requires_grad_(False)


def _teacher(options: Distillation, model: Any) -> Any:
    """Raises EngineError where its vocabulary is another one, and whatever is wrong with a model folder, under the teacher's field."""
    try:
        teacher = _load(options.teacher, model.dtype)
        check_layout(teacher, options.teacher)
    except HeadraceError as error:
        error.field = TEACHER
        raise
    theirs, ours = (int(one.get_output_embeddings().weight.shape[0]) for one in (teacher, model))
    if theirs != ours:
        raise EngineError(
            f"the teacher knows {theirs} tokens, the model {ours}: the same token ids do not mean the same",
            field=TEACHER,
            value=options.teacher,
            cure="choose a teacher of the same family, with the same tokenizer and vocabulary size",
        )
    return teacher
