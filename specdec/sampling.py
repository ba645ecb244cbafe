"""Probabilities made of logits, tokens drawn from them, and the one `residual` of the project.

Probabilities, not logits, leave this module, so that verifiers and drafters never see a temperature.
"""

import hashlib
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Probability, typed


@typed
class SamplingConfig:
    """The way from logits to probabilities for target and drafter (`conf/sampling/`); temperature 0 is greedy."""

    name: str
    temperature: Annotated[float, Field(ge=0.0)]
    top_k: AtLeastOne | None
    top_p: Probability | None
    min_p: Probability | None
    typical_p: Annotated[float, Field(gt=0.0, le=1.0)] | None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = SamplingConfig(name="greedy", temperature=0.0, top_k=None, top_p=None, min_p=None, typical_p=None)


def probabilities(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return the standardised laws: temperature, then top-k, top-p, min-p and locally typical sampling, each on the
    renormalised law that the one before left. This is the order of transformers.

    From logits [..., V] of any float type they are computed in float32, or float64 where the logits are; [..., V],
    one-hot at the first maximum when the temperature is 0.
    """
    if sampling.greedy:
        # float32 holds a one-hot exactly, whatever the logits' type.
        # `max` finds the same first maximum as `argmax`, in a quarter of the time for 16-bit logits on a CPU.
        return one_hot(logits.max(dim=-1).indices, logits.shape[-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(~among_largest(logits, sampling.top_k), -torch.inf)
    p = logits.softmax(dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        # The smallest set whose mass reaches top_p: a token stays while the mass before it is below top_p.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0.0)
        ordered[..., 0] = ordered[..., 0].clamp_min(torch.finfo(p.dtype).tiny)
        p = torch.zeros_like(p).scatter(-1, order, ordered)
    if sampling.min_p is not None:
        p = p.masked_fill(p < sampling.min_p * p.amax(dim=-1, keepdim=True), 0.0)
    if sampling.typical_p is not None and sampling.typical_p < 1.0:
        p = p / p.sum(dim=-1, keepdim=True)
        p = p.masked_fill(~most_typical(p, sampling.typical_p), 0.0)
    return p / p.sum(dim=-1, keepdim=True)


def among_largest(values: Tensor, k: int) -> Tensor:
    """Return a mask [..., V] of the k largest of values [..., V], k at most V. Exactly k: ties are broken by order, so
    that target and drafter cut alike.
    """
    # `topk` picks among equals as it likes, so only its smallest value is used.
    smallest = values.topk(k, dim=-1).values[..., -1:]
    above, tied = values > smallest, values == smallest
    return above | (tied & (tied.cumsum(-1) <= k - above.sum(-1, keepdim=True)))


def most_typical(p: Tensor, mass: float) -> Tensor:
    """Return a mask [..., V] of the most typical tokens under p [..., V]: the smallest set whose mass reaches `mass`.

    A token is the more typical the nearer its information -ln p(x) is to the entropy of p, in nats (Meister et al.
    2202.00666). Tokens that are as near as the last one of the set belong to it, as in transformers.
    """
    distance = (-p.log() - torch.special.entr(p).sum(dim=-1, keepdim=True)).abs()  # infinite where p is 0
    ordered, order = distance.sort(dim=-1, stable=True)
    below = (p.gather(-1, order).cumsum(-1) < mass).sum(dim=-1, keepdim=True)
    return distance <= ordered.gather(-1, below.clamp_max(p.shape[-1] - 1))


def checked_probabilities(logits: Tensor, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Return `probabilities` [..., V], and whether the logits are finite, a boolean [] on their device.

    The maximum over the vocabulary is NaN or +inf where any logit is; -inf alone is a legitimate way to forbid a token.
    At temperature 0 the same pass over the vocabulary gives both.
    """
    top = logits.max(dim=-1)
    finite = torch.isfinite(top.values).all()
    if sampling.greedy:
        return one_hot(top.indices, logits.shape[-1]), finite
    return probabilities(logits, sampling), finite


def one_hot(tokens: Tensor, size: int) -> Tensor:
    """Return the point masses [..., size], in float32, of tokens [...]."""
    return torch.zeros(*tokens.shape, size, device=tokens.device).scatter_(-1, tokens.unsqueeze(-1), 1.0)


def sample(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one token [...] from each law of p [..., V]."""
    return drawn(p, torch.rand((*p.shape[:-1], 1), generator=generator, device=p.device, dtype=torch.float64))


def drawn(p: Tensor, uniform: Tensor) -> Tensor:
    """Return the token [...] at which the cumulative sum of p [..., V] passes `uniform` [..., 1] in [0, 1).

    The sum is in float64, so that its rounding stays below that of p. Several times faster than `torch.multinomial`,
    which draws one exponential number per token of the vocabulary.
    """
    cumulative = p.cumsum(-1, dtype=torch.float64)
    # The first token whose sum exceeds u has p > 0; u just below the total may round up to it.
    token = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True).squeeze(-1)
    return token.clamp_max(p.shape[-1] - 1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return norm((p - q)_+) over the last dimension (Leviathan et al. 2.3; Chen et al. Algorithm 2).

    Where p and q agree up to rounding, nothing is left. A rejection then had probability 0 in exact arithmetic, and p
    itself is the right law to fall back to.
    """
    positive = (p - q).clamp_min(0.0)
    mass = positive.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, positive / mass, p)


def generator_for(seed: int, prompt: str, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for one prompt and purpose, so that neither order nor interruptions change an output."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{prompt}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def generator_on(generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Return a generator that can draw on `device`: a new one, seeded by `generator`, where that lives elsewhere.

    A run's generators live on the host, and drawing on a GPU takes one that lives there.
    """
    if generator is None or generator.device.type == device.type:
        return generator
    seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    return torch.Generator(device=device).manual_seed(seed)


def all_finite(q: Tensor | None) -> Tensor | None:
    """Return whether all laws q are finite, a boolean [] for the host to read after its next wait for the device."""
    return None if q is None else torch.isfinite(q).all().to("cpu", non_blocking=True)
