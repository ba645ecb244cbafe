"""The check of another engine's greedy text against the target's own logits, before its times are trusted."""

from collections.abc import Sequence

import torch

from specdec.targets.base import Target

# Two ways to compute one model in one format differ by a few of its rounding errors, which are seen as those between
# the target's own arithmetic and float32; where the target computes in float32 they are told by its logits' size.
_ROUNDINGS = 4.0
_RELATIVE = 1e-3


@torch.inference_mode()
def departure(target: Target, prompt: Sequence[int], text: Sequence[int]) -> str:
    """Say where a text, taken as greedy, has a token that no rounding makes the target's choice; "" if nowhere.

    Every token is judged after the text's own beginning: the target's float32 logit of it may lie below the highest one
    by a near-tie only.
    """
    if not text:
        return "it wrote nothing"
    wide = target.score(prompt, text[:-1]).double()  # [N, V]
    narrow = target.score_as_decoded(prompt, text[:-1]).double()
    tokens = torch.tensor(list(text), device=wide.device)
    outside = (tokens < 0) | (tokens >= wide.shape[-1])
    if outside.any():
        return f"token {int(outside.nonzero()[0]) + 1} of its text is none of the target's vocabulary"
    short = wide.amax(-1) - wide.gather(-1, tokens[:, None])[:, 0]  # [N] of each token's logit to the highest
    allowed = _ROUNDINGS * float((wide - narrow).abs().max()) + _RELATIVE * float(wide.abs().max())
    apart = (short > allowed).nonzero()
    if not len(apart):
        return ""
    place = int(apart[0])
    return (
        f"its greedy text is not the target's: the logit of token {place + 1} lies {float(short[place]):.2g} below the "
        f"highest, where rounding explains {allowed:.2g}"
    )
