"""Exchangeable attention of a video transformer: processors that call one function for all layers.

diffusers' own processors call torch's attention directly (CogVideoX, for which `set_attention_backend` has no effect)
or choose among backends by an enumeration that cannot be extended (Wan).  These processors replace them by
`set_attn_processor`.  They differ only in the function that is called and in the layout [B, S, H, D], which is that of
the projections, so nothing is transposed before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from attnbench.errors import AttnbenchError, Unsupported, refusal
from attnbench.models.video.config import WHO, VideoModel

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""out = attend(q, k, v), all [B, S, H, D], with any strides but the last 1; it keeps no reference to them."""

ROWS = 64
"Number of rows of the first layer's output that every call keeps, including the first and the last."

WORKSPACE = {"cuda": 2**31, "cpu": 2**28}
"Limit of the scores of the plain evaluation, in bytes; it processes rows in chunks that stay below."


def plain(q: Tensor, k: Tensor, v: Tensor, *, seen: Callable[[int, int], Tensor] | None = None) -> Tensor:
    """Return softmax attention in the precision of its inputs, computed in chunks of rows; same shape as q.

    Args:
        q: [B, S, H, D], as k and v.
        k: keys.
        v: values.
        seen: returns bool [B, H, rows, keys] for rows from one number up to another; a row that sees no key gives 0.
    """
    rows = max(1, WORKSPACE.get(q.device.type, 2**28) // (q.shape[0] * q.shape[2] * k.shape[1] * q.element_size()))
    keys, values = k.permute(0, 2, 3, 1), v.transpose(1, 2)
    parts = []
    for number, some in enumerate(q.transpose(1, 2).split(rows, dim=2)):
        scores = torch.matmul(some * q.shape[-1] ** -0.5, keys)
        if seen is None:
            weights = scores.softmax(dim=-1)
        else:
            visible = seen(number * rows, number * rows + some.shape[2])
            weights = scores.masked_fill_(~visible, -torch.inf).softmax(dim=-1)
            if not bool(visible.any(dim=-1).all()):
                weights = weights.nan_to_num(0.0)  # costs as much memory traffic as the softmax
        parts.append(torch.matmul(weights, values))
    return torch.cat(parts, dim=2).transpose(1, 2)


class Spans:
    """Times of named parts of a call, on the device that runs them; recorded only inside `recorded`."""

    def __init__(self) -> None:
        self.on = False
        self.mark: Callable[[str], AbstractContextManager[Any]] = _unmarked
        "opens a profiler's range of that name around each part"
        self._found: list[tuple[str, Any, Any]] = []

    @contextmanager
    def span(self, name: str, device: torch.device) -> Iterator[None]:
        """Record the work that the block launches on the device."""
        with self.mark(name):
            if not self.on:
                yield
                return
            before = _now(device)
            yield
        self._found.append((name, before, _now(device)))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Discard earlier spans and record those of the block."""
        self._found.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False

    def total_ms(self, name: str) -> float:
        """Return the sum of the spans of a name, in ms; waits for the device."""
        total = 0.0
        for one, before, after in self._found:
            if one == name and isinstance(before, float):
                total += 1e3 * (after - before)
            elif one == name:
                after.synchronize()
                total += before.elapsed_time(after)
        return total


def _unmarked(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Exchanged:
    """The attention of one transformer: counts its calls, times them, and passes inputs and outputs to an observer.

    It keeps some rows of the first layer's output for the check against an oracle: after thirty layers of random
    weights, whose attention is close to a mean of all values, wrong attention is hardly visible.
    """

    def __init__(
        self,
        attend: Attend,
        spans: Spans | None = None,
        *,
        timed: bool = True,
        dense: Attend | None = None,
        chosen: Callable[[], Tensor] | None = None,
    ) -> None:
        """Call `attend`.

        Args:
            attend: the attention under test.
            spans: spans shared with `attend` if it records its own; `timed` is then False.
            timed: record each call as a span.
            dense: called instead while `is_dense`, for first steps that are not sparse.
            chosen: returns the block map predicted by the last call, bool [B, H, rows, columns], if it predicts one.
        """
        self.attend, self.spans, self.timed, self.dense = attend, spans or Spans(), timed, dense
        self.chosen = chosen
        self.maps: list[Tensor] = []
        "of the last pass, one per layer"
        self.is_dense = False
        self.calls = 0
        self.layer = 0
        "number of the next layer; layers call in order, and the caller of a pass sets it to 0"
        self.rows: Tensor | None = None
        "[B, up to 64, H, D] of the first layer of the last call"
        self._index: dict[int, Tensor] = {}
        self.look: Callable[[int, Tensor, Tensor, Tensor, Tensor], None] | None = None
        "called with layer, q, k, v and out of every call; if set, an attention that changes its inputs raises"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the next layer, [B, S, H, D]."""
        layer = self.layer
        self.calls, self.layer = self.calls + 1, layer + 1
        given = None if self.look is None else (q.clone(), k.clone(), v.clone())
        if self.is_dense and self.dense is not None:
            with self.spans.span("attention", q.device):
                out = self.dense(q, k, v)
        elif self.timed:
            with self.spans.span("attention", q.device):
                out = self.attend(q, k, v)
        else:
            out = self.attend(q, k, v)
        if self.chosen is not None and not self.is_dense:
            self.maps[layer:] = [self.chosen()]
        _check_output(out, q, v)
        if layer == 0:
            if out.shape[1] not in self._index:
                self._index[out.shape[1]] = kept_rows(out.shape[1], out.device)
            self.rows = out.index_select(1, self._index[out.shape[1]])
        if given is not None and self.look is not None:
            _check_inputs(given, (q, k, v))
            self.look(layer, *given, out)
        return out


def _check_output(out: Any, q: Tensor, v: Tensor) -> None:
    # Otherwise the model's next line fails without naming the attention, or broadcasts silently.
    wanted = [*q.shape[:-1], v.shape[-1]]
    if not isinstance(out, Tensor) or list(out.shape) != wanted or out.dtype != q.dtype:
        found = f"{list(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise AttnbenchError(refusal(WHO, "attention output", found, "does not fit the model", f"{wanted} {q.dtype}"))


def _check_inputs(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> None:
    changed = [
        name for name, x, y in zip("qkv", before, after, strict=True) if not torch.equal(x.nan_to_num(), y.nan_to_num())
    ]
    if changed:
        raise AttnbenchError(
            refusal(
                WHO,
                "attention input",
                ", ".join(changed),
                "was changed by the call",
                "an attention that only reads its inputs",
            )
        )


def kept_rows(tokens: int, device: torch.device) -> Tensor:
    """Return the indices of kept rows: evenly spaced, including the first and the last."""
    count = min(ROWS, tokens)
    return torch.arange(count, device=device) * (tokens - 1) // max(1, count - 1)


_OPEN: WeakValueDictionary[int, Exchanged] = WeakValueDictionary()
"Attentions that the operator below calls by number: an operator's arguments are tensors and numbers only."
_NUMBERS = count()


def opaque(attention: Exchanged) -> Attend:
    """Return the attention as a custom operator, opaque to a compiler: no graph break, no recompilation.

    It works as long as another reference to `attention` exists.
    """
    number = next(_NUMBERS)
    _OPEN[number] = attention

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(q, k, v, number)

    return call


@torch.library.custom_op("attnbench::video_attention", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, number: int) -> Tensor:
    # A compiler plans with the strides that `_shape_of` returns.
    return _OPEN[number](q, k, v).contiguous()


@_attend.register_fake
def _shape_of(q: Tensor, k: Tensor, v: Tensor, number: int) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


class CogVideoXProcessor:
    """Joint attention over text and video."""

    def __init__(self, attention: Attend) -> None:
        self.attention = attention

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return video and text tokens, [B, tokens, width] each; without mask and rotary embedding."""
        if attention_mask is not None or image_rotary_emb is not None:
            raise Unsupported("video: a mask or a rotary embedding was given; a CogVideoX model without both")
        text = encoder_hidden_states.shape[1]
        tokens = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        q, k, v = (project(tokens).unflatten(2, (attn.heads, -1)) for project in (attn.to_q, attn.to_k, attn.to_v))
        q = q if attn.norm_q is None else attn.norm_q(q)
        k = k if attn.norm_k is None else attn.norm_k(k)
        out = self.attention(q, k, v).flatten(2)
        out = attn.to_out[1](attn.to_out[0](out))
        found, video = out.split([text, out.shape[1] - text], dim=1)
        return video, found


class WanProcessor:
    """Self attention of video tokens; cross attention to the text stays torch's own."""

    def __init__(self, attention: Attend) -> None:
        self.attention = attention

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return video tokens after self attention or, given text tokens, cross attention; without mask and image."""
        if attention_mask is not None or attn.add_k_proj is not None:
            raise Unsupported("video: a mask or an image was given; a Wan model from text without both")
        crossing = encoder_hidden_states is not None
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(source))
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (q, k, attn.to_v(source)))
        if rotary_emb is not None:
            q, k = _rotated(q, *rotary_emb), _rotated(k, *rotary_emb)
        if crossing:
            heads_first = (x.transpose(1, 2) for x in (q, k, v))
            out = functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)
        else:
            out = self.attention(q, k, v)
        return attn.to_out[1](attn.to_out[0](out.flatten(2).type_as(hidden_states)))


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs of columns by an angle per row, as in diffusers."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cosines[..., 0::2], sines[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out.type_as(x)


PROCESSORS = {"cogvideox": CogVideoXProcessor, "wan": WanProcessor}


def exchange(transformer: Any, model: VideoModel, attention: Attend) -> None:
    """Make every layer of a transformer call `attention`, by diffusers' own `set_attn_processor`.

    All layers share one processor: a compiler then generates the same code for every block.
    """
    transformer.set_attn_processor(PROCESSORS[model.family](attention))
