"""Token sequences of one length to train heads on, cut from documents, in an order that seed and step alone decide.

Knows neither heads nor how they are trained, nor where documents come from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.progress import stage
from specdec.text.document_store import Documents, DocumentStore, Encoded
from specdec.text.sources import Part
from specdec.training.data_recipes import SequencesConfig, fingerprint


@dataclass(frozen=True)
class Batch:
    """Sequences that are read together."""

    tokens: Tensor  # [B, S] int64
    scored: Tensor  # [B, S] bool: the tokens to be predicted; padding is not scored
    part: Part
    numbers: np.ndarray  # [B] of these sequences among all of the part

    def __len__(self) -> int:
        return len(self.numbers)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.tokens.to(device), self.scored.to(device)

    def split(self, size: int) -> "Iterator[Batch]":
        """Yield micro-batches of at most `size` sequences."""
        for i in range(0, len(self), size):
            end = i + size
            yield Batch(self.tokens[i:end], self.scored[i:end], self.part, self.numbers[i:end])


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens around a document, and the one that fills a sequence up."""

    # The tokenizer's begin and end tokens; one that is both stands before only, as in the pocket models' own text.
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int  # never scored

    @classmethod
    def of(cls, tokenizer: Any) -> "SpecialTokens":
        """Return the special tokens of a plain text."""
        begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        before = end if begin is None else begin
        return cls(
            before=() if before is None else (before,),
            after=() if end in (None, before) else (end,),
            padding=next((token for token in (tokenizer.pad_token_id, end) if token is not None), 0),
        )

    @classmethod
    def none(cls, tokenizer: Any) -> "SpecialTokens":
        """Return padding alone, for documents that have their special tokens already."""
        return cls((), (), cls.of(tokenizer).padding)

    def around(self, document: Encoded) -> Encoded:
        """Put the special tokens around a document; scored is the one that ends a text. A token that both begins and
        ends texts ends the one before it, so it is scored where it stands: before.
        """
        tokens = np.concatenate([self.before, document.tokens, self.after])
        both = not self.after
        scored = np.concatenate([[both] * len(self.before), document.scored, [True] * len(self.after)])
        return Encoded(tokens.astype(np.uint32), scored.astype(bool))

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


class PackedSequences:
    """Shuffled documents, one after another, cut into pieces of one length; an incomplete last piece is dropped."""

    def __init__(self, documents: Documents, length: int, special: SpecialTokens, rng: np.random.Generator) -> None:
        self.documents, self.length, self.special = documents, length, special
        self.order = rng.permutation(len(documents))
        self.ends = np.cumsum(documents.lengths[self.order] + special.size)

    def __len__(self) -> int:
        return int(self.ends[-1]) // self.length if len(self.ends) else 0

    def __getitem__(self, number: int) -> Encoded:
        first, last = number * self.length, (number + 1) * self.length
        place = int(np.searchsorted(self.ends, first, side="right"))
        begin = int(self.ends[place - 1]) if place else 0
        parts: list[Encoded] = []
        while begin < last:
            parts.append(self.special.around(self.documents[int(self.order[place])]))
            begin, place = int(self.ends[place]), place + 1
        skipped = first - (begin - sum(map(len, parts)))
        tokens, scored = (np.concatenate([getattr(part, of) for part in parts]) for of in ("tokens", "scored"))
        return Encoded(tokens[skipped:][: self.length], scored[skipped:][: self.length])


class DocumentSequences:
    """One document per sequence, shuffled, its end cut off or padded; a sequence with nothing scored is left out."""

    def __init__(self, documents: Documents, length: int, special: SpecialTokens, rng: np.random.Generator) -> None:
        self.documents, self.length, self.special = documents, length, special
        # A document is used if the count of scored tokens grows between its beginning and its last token that fits.
        sums = np.concatenate([[0], np.cumsum(documents.scored, dtype=np.int64)])
        last = np.minimum(documents.ends, documents.starts + max(length - special.size, 0))
        self.order = rng.permutation(np.flatnonzero(sums[last] > sums[documents.starts]))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Encoded:
        document = self.special.around(self.documents[int(self.order[number])])
        rest = max(self.length - len(document), 0)
        tokens = np.concatenate([document.tokens, np.full(rest, self.special.padding, dtype=np.uint32)])
        scored = np.concatenate([document.scored, np.zeros(rest, dtype=bool)])
        return Encoded(tokens[: self.length], scored[: self.length])


class Sequences:
    """The training and held-out sequences of a recipe, which are `length` tokens long, `batch_size` in a step."""

    def __init__(
        self, store: DocumentStore, config: SequencesConfig, seed: int, special: SpecialTokens, content: str
    ) -> None:
        """Cut documents whose hash is `content`. Raises UsageError: too little text for a step, or none held out."""
        length = config.sequence_length
        self.length, self.batch_size, self.seed = length, config.batch, seed
        self.manifest = store.manifest  # where the text comes from
        kind = PackedSequences if config.packed else DocumentSequences
        self._parts = {
            "train": kind(store.train, length, special, np.random.default_rng([seed, 1])),
            "heldout": kind(store.heldout, length, special, np.random.default_rng([seed, 2])),
        }
        found = len(self._parts["train"])
        self._trained = found if config.sequences is None else min(found, config.sequences)
        other_length = "lower" if config.packed else "raise"
        if self._trained < config.batch:
            left_out = "".join(f"; left out: {n} {why}" for why, n in store.manifest.get("left_out", {}).items())
            raise UsageError(
                f"The text of data.source makes {found} sequences of data.sequence_length={length} tokens, of which "
                f"{self._trained} are read (data.sequences), and a step takes data.batch={config.batch}{left_out}: "
                f"lower the batch, {other_length} the length, or give more text."
            )
        if not len(self._parts["heldout"]):
            raise UsageError(
                f"The held-out text of data.source makes no sequence of data.sequence_length={length} tokens: "
                f"{other_length} that, hold more out (data.source.heldout_every), or give more text."
            )
        wanted = int(self._trained * config.passes) // config.batch if config.passes is not None else config.steps
        self.steps = max(int(wanted or 0), 1)  # of the optimizer, in the whole training
        self.counts: dict[Part, int] = {  # of the sequences that are ever read
            "train": min(self._trained, self.steps * config.batch),
            "heldout": min(config.heldout, len(self._parts["heldout"])),
        }
        self.fingerprint = fingerprint(content, seed, length, config.packed)  # names what is kept of them on disk

    def train(self, step: int) -> Batch:
        """Return the batch of a step, from 0 on; steps may be asked for in any order."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        passes, within = np.divmod(places, self._trained)
        numbers, chosen = np.arange(self._trained), []
        for turn in map(int, np.unique(passes)):
            rng = np.random.default_rng([self.seed, 3, turn])
            order = numbers if turn == 0 else rng.permutation(numbers)  # in the first pass documents were shuffled
            chosen.append(order[within[passes == turn]])
        return self.batch("train", np.concatenate(chosen))

    def heldout(self, limit: int | None = None) -> Iterator[Batch]:
        """Yield the held-out sequences, of at most `limit` batches, always the same; says how far their reader is."""
        firsts = range(0, self.counts["heldout"], self.batch_size)[:limit]
        with stage("scoring held-out text", total=len(firsts), told=False) as under_way:
            for first in firsts:
                yield self.batch("heldout", np.arange(first, min(first + self.batch_size, self.counts["heldout"])))
                under_way.advance()

    def batch(self, part: Part, numbers: np.ndarray) -> Batch:
        """Return sequences by their numbers, which are below `counts[part]`."""
        found = [self._parts[part][int(number)] for number in numbers]
        tokens = torch.from_numpy(np.stack([encoded.tokens for encoded in found]).astype(np.int64))
        return Batch(tokens, torch.from_numpy(np.stack([encoded.scored for encoded in found])), part, numbers)
