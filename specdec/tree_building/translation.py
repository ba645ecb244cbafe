"""Translation between the vocabularies of two tokenizers, for a drafter that spells text in another way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.targets.base import Target


class Translation:
    """Speculation through the intersection of two vocabularies.

    A token is shared when both tokenizers have its piece, spelled alike, as a special token in both or in neither.
    Spellings are compared as the vocabularies hold them: `Ġthe` of a byte-level tokenizer is not `▁the` of
    SentencePiece. Only shared tokens are proposed; whatever the drafter reads is text, tokenised its own way.
    """

    def __init__(self, name: str, drafter: Any, drafter_size: int, target: Target) -> None:
        """Translate for the fast tokenizer of the drafter's model `name`, which may have more tokens or fewer than its
        output matrix. Raises UsageError: no tokenizer, or no token in common.
        """
        for whose, tokenizer in ((f"drafter.model={name}", drafter), ("the target", target.tokenizer)):
            if tokenizer is None:
                raise UsageError(f"Bad value drafter.translate=true: {whose} has no tokenizer to translate with.")
        special, special_there = _special(target.tokenizer), _special(drafter)
        here, there = target.tokenizer.get_vocab(), drafter.get_vocab()
        pairs = sorted(
            (token, there[piece])
            for piece, token in here.items()
            if piece in there and (piece in special) == (piece in special_there)
            if token < target.vocab_size and there[piece] < drafter_size
        )
        if not pairs:
            raise UsageError(
                f"Bad value drafter.model={name}: its tokenizer and the target's spell no token alike; "
                "use another drafter.model."
            )
        self.shared = len(pairs)
        self._target, self._drafter = target.tokenizer, drafter
        self._target_size, self._drafter_size = target.vocab_size, drafter_size
        both = torch.tensor(pairs, device=target.device)  # [shared, 2]
        self._target_ids, self._drafter_ids = both.unbind(-1)
        self._to_drafter = torch.zeros(target.vocab_size, dtype=torch.long, device=target.device)
        self._to_drafter[self._target_ids] = self._drafter_ids
        # A marker that only the target knows would reach the drafter as its spelling, brackets and all.
        self._unread = {here[piece] for piece in special if piece in here} - {token for token, _ in pairs}
        start = drafter.bos_token_id
        self._front = [start] if start is not None and drafter.encode("")[:1] == [start] else []

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Return the target's tokens as the drafter's: their text, tokenised anew. Takes time linear in the text."""
        text = self._target.decode(
            [token for token in tokens if token not in self._unread],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        read = [token for token in self._drafter.encode(text, add_special_tokens=False) if token < self._drafter_size]
        return read if read[:1] == self._front else self._front + read

    def align(self, logits: Tensor) -> Tensor:
        """Return the drafter's logits [..., D] over the target's tokens [..., V], -inf where a token is not shared.
        So q, which is standardised afterwards, is the drafter's law restricted to shared tokens and renormalised, and
        top-k and top-p cut among tokens that can be proposed.
        """
        aligned = logits.new_full((*logits.shape[:-1], self._target_size), -torch.inf)
        return aligned.index_copy_(-1, self._target_ids, logits.index_select(-1, self._drafter_ids))

    def to_drafter(self, tokens: Tensor) -> Tensor:
        """Return shared tokens [...] of the target as the drafter's."""
        return self._to_drafter[tokens]


def check_same(name: str, drafter: Any, target: Any) -> None:
    """Check that two tokenizers are the same; raises UsageError where an id means different tokens to them."""
    own, theirs = drafter.get_vocab(), target.get_vocab()
    if own != theirs:
        differ = len(dict(own.items() ^ theirs.items()))
        raise UsageError(
            f"Bad value drafter.model={name}: its tokenizer is not the target's ({len(own)} and {len(theirs)} tokens, "
            f"{differ} pieces differ); use a drafter.model of the same family, or drafter.translate=true."
        )


def _special(tokenizer: Any) -> set[str]:
    """Return the pieces that stand for no text, among them markers for which the tokenizer has no role."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return added | set(tokenizer.all_special_tokens)
