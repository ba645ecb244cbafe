"""The calls of decoding behind one text, compared with plain forward passes over the same tokens.

Two kinds of checks: logits have to be those of a plain pass, within what rounding makes; and what a token may not see
(later tokens, other branches, rejected tokens) has to change nothing at all in calls of one shape.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from math import gcd, inf

import torch
from torch import Tensor

from specdec.errors import is_out_of_memory
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import path_batch, static_pass
from specdec.models.quantization import quantization_of
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.models.routing import names_experts
from specdec.models.seq2seq import AnyDecoder, Seq2SeqDecoder
from specdec.records import Tree, chain_tree

# The most by which logits may differ from those of a plain pass, as a share of their spread over the vocabulary. On
# random models of 120 architectures and on the pocket models, the largest difference by rounding was 3e-6 in float32
# and 0.014 in bfloat16 (0.03 with 48 layers), the smallest by a fault 0.09; TF32 rounds to 3e-3. In 16 bits the median
# of the tokens counts, because there a tie between experts may fall another way for some of them.
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-4, torch.float16: 0.03, torch.bfloat16: 0.08}
_A_LAYER = 1e-5  # of the tolerance in float32, for each of a model's layers: rounding grows with them; scans round more
_FEWEST = 4  # layers that are allowed for
_TF32 = 5e-3
BITS_16 = (torch.bfloat16, torch.float16)
# The most by which hidden tokens may change logits where tokens share more than attention: an expert computes all its
# tokens at once, and quantised products scale all rows alike. Everywhere else they change no bit.
_SHARED = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 0.015, torch.bfloat16: 0.04}

# Nodes 0 to 13 follow the root, 14 and 15 follow node 13, and 16 follows 15: in the row most nodes stand far from where
# a chain of their depth would end.
TREE = Tree((*(-1,) * 14, 13, 13, 15))
# As many nodes, leaves and levels, in another place: a mask that a model keeps for calls of one size is wrong then.
_OTHER_TREE = Tree((*(-1,) * 14, 0, 0, 15))
_FAR = 3  # the first row of the tree's logits, the root's being 0, that stands far from there
_PATH = (13, 15)  # the nodes that are committed; their slots have to move
_LAST = 16  # the node behind them
PROMPT = 9  # tokens of the prompt of a model's first comparison
CHECKS = 12  # comparisons of a text at most, each of which is told of
BEHIND = 6  # tokens of a text behind the prompt: a root, two of a path, three more
_LEAVES = (0, 1, 7, 14, 16)  # of the tree that are compared
_FEW = (7, 16)  # those that are compared where the prompt is long
_LONG = 64  # tokens; behind a longer prompt few leaves are compared
ONE_BY_ONE = 1024  # tokens; plain passes over longer prompts are made one after another, which takes less memory
_SEEN = 40  # tokens before a changed one whose logits have to stay


class Comparison:
    """The checks at one length of the prompt. By check, `errors` says how far logits were from those they should be
    (see `logit_error`), where there was no fault, and `faults` what the model said where it could not be asked.
    """

    def __init__(self, decoder: AnyDecoder, length: int, checked: Callable[[], None] = lambda: None) -> None:
        """Take the number of tokens of the text before the draft's root, and what is called after each comparison. An
        encoder-decoder's text begins with its start token, and its encoder reads `length` tokens, or a short prompt.
        """
        self._decoder, self._checked = decoder, checked
        self._device, self._dtype = decoder.device, decoder.model.dtype
        # A model takes any mask unless it keeps states or makes a mask of its own: these follow one path.
        self._masked = isinstance(decoder, Decoder) and not decoder.recurrent and not decoder.probed.own_masks
        # Every length has tokens of its own, so that nothing that a model kept of the text before is right by chance.
        tokens = iter(tokens_of(decoder, length + 1 + 2 + 3 + len(TREE) + 3, offset=length - PROMPT))
        self._prompt = self._read = list(islice(tokens, length))
        if isinstance(decoder, Seq2SeqDecoder):
            self._prompt = [decoder.start_token, *self._prompt[1:]]
            self._read = tokens_of(decoder, max(length, PROMPT), offset=length)
        (self._root,), self._chain, self._wrong = (list(islice(tokens, count)) for count in (1, 2, 3))
        self._leaves = _LEAVES if length <= _LONG else _FEW
        compared = {node for leaf in self._leaves for node in TREE.path(leaf)}
        # Few different tokens: one that breaks the model is better met by decoding, which says where.
        self._nodes = [next(tokens) if node in compared else self._wrong[node % 3] for node in range(len(TREE))]
        self._behind = list(islice(tokens, 3))
        self._others = (self._read * BEHIND)[:BEHIND]  # stand where nothing may change
        self._compared = [0, *(1 + node for node in sorted(compared))]  # rows of the tree's logits
        self._committed = 0
        self.errors: dict[str, float] = {}
        self.faults: dict[str, str] = {}

    @staticmethod
    def tokens(length: int) -> int:
        """Return the number of tokens that the checks behind a prompt of this length evaluate, about."""
        return (len(_LEAVES if length <= _LONG else _FEW) + 8) * (length + BEHIND)

    def plain(self) -> bool:
        """Evaluate all continuations of the prompt without a cache; return False where the model cannot."""
        return self._agrees("plain", self._plain_pass)

    @property
    def finite(self) -> bool:
        """True if the plain logits are numbers. Models give tokens that they never choose -inf."""
        return all(torch.isfinite(logits).any() and not logits.isnan().any() for logits in self._plain)

    def causal(self) -> bool:
        """Return whether later tokens change no logits at earlier places."""
        return self._agrees("causal", self._causality, hidden=True)

    def chain(self) -> bool:
        """Return whether a chain behind a rejection agrees, whatever was rejected."""
        # The chain behind another rejected one is what it was behind the first.
        return self._agrees("chain", self._chain_after_a_rejection) and self._agrees(
            "rejected", lambda: [_change(self._behind_rejected(self._others[:3]), self._once_rejected)], hidden=True
        )

    def packed(self) -> bool:
        """Return whether a tree in one sequence agrees, and a text behind a path of it; `chain` comes before."""
        return (
            self._masked
            and self._agrees("packed", lambda: self._tree(batch=False))
            and self._agrees("branches", lambda: self._other_branches(batch=False), hidden=True)
        )

    def rows(self) -> bool:
        """Return whether the same tree agrees with its paths as a batch; `chain` comes before."""
        return self._agrees("rows", lambda: self._tree(batch=True)) and self._agrees(
            "sequences", lambda: self._other_branches(batch=True), hidden=True
        )

    def batch(self) -> bool:
        """Return whether texts of several lengths in one call agree, each with itself alone; `packed` comes before."""
        return self._agrees("batch", self._texts_in_one_call) and self._agrees(
            "texts", lambda: [_change(self._first_of_three(self._others)[0][0], self._first_text)], hidden=True
        )

    def pieces(self) -> bool:
        """Return whether a prefill in several calls agrees."""
        return self._agrees("pieces", self._prefill_in_pieces)

    def static(self) -> bool:
        """Return whether calls of fixed shape agree."""
        return self._masked and self._agrees("static", self._static_call)

    def crossing(self, border: int) -> bool:
        """Return whether a text agrees that crosses the length `border` in two calls."""
        return self._agrees("crossing", lambda: self._text_across(border))

    def _agrees(self, check: str, errors: Callable[[], Sequence[Tensor]], hidden: bool = False) -> bool:
        """Make a comparison, keep its error or the model's fault, and return whether each group of tokens is within the
        tolerance. With `hidden`, errors are changes by tokens that may not be seen: none is allowed unless tokens meet.
        """
        try:
            found = errors()
        except Exception as error:  # models raise some ten unrelated types at calls that they do not expect
            if is_out_of_memory(error):
                raise
            self.faults[check] = " ".join(f"{error}".split())[:200] or type(error).__name__
            return False
        finally:
            self._checked()
        middle = self._dtype in BITS_16 and not hidden
        largest = max((float(group.median() if middle else group.max()) for group in found), default=0.0)
        self.errors[check] = largest
        if hidden:
            model = self._decoder.model
            meet = names_experts(model.config.get_text_config()) or quantization_of(model) is not None
            allowed = _SHARED.get(self._dtype, 0.08) if meet else 0.0
        elif self._decoder.recurrent and not middle:  # in float64 too: they scan in float32
            allowed = _TOLERANCES[torch.float32]
        elif self._dtype == torch.float32:
            tf32 = self._device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
            layers = max(_FEWEST, self._decoder.layers)
            allowed = _TF32 if tf32 else min(_TOLERANCES[self._dtype], _A_LAYER * layers)
        else:
            allowed = _TOLERANCES.get(self._dtype, 0.08)
        return largest <= allowed

    def _plain_pass(self) -> Sequence[Tensor]:
        """Keep all continuations' logits [B, 7, V]: the laws after the prompt and each of six tokens behind it."""
        paths = [self._chain, *([self._nodes[node] for node in TREE.path(leaf)] for leaf in self._leaves)]
        after = [self._root, *(self._nodes[node] for node in _PATH), *self._behind]
        texts = [*(([self._root, *path] + self._behind * 2)[:BEHIND] for path in paths), after]
        self._after = after
        self._plain = plain_logits(self._decoder, self._prompt, texts, self._read)
        places: dict[int, tuple[int, int]] = {}
        for row, leaf in enumerate(self._leaves, start=1):
            places |= {node: (row, depth) for depth, node in enumerate(TREE.path(leaf), start=2)}
        nodes = [self._plain[places[node - 1]] for node in self._compared[1:]]
        self._plain_tree = torch.stack([self._plain[0, 1], *nodes])
        return [torch.zeros(1)]

    def _causality(self) -> Sequence[Tensor]:
        """Compare the laws before a place between texts that differ from that place on, in calls of one shape. The
        changed tokens are the last one, all behind the root, and the last third of the prompt.
        """
        decoder = self._decoder
        if isinstance(decoder, Seq2SeqDecoder):
            texts = [self._after[0], *self._others[1:]], self._after
            return [_change(*(plain_logits(decoder, self._prompt, [text], self._read)[0, :2] for text in texts))]
        whole = [*self._prompt, *self._after]
        first = _last_logits(decoder, [whole], _SEEN + BEHIND)[0]
        errors = []
        few = len(self._prompt) > _LONG
        for changed in {BEHIND - 1} if few else {1, BEHIND - 1, min(BEHIND + len(self._prompt) // 3, _SEEN)}:
            others = (self._others * (changed // BEHIND + 1))[:changed]
            logits = _last_logits(decoder, [[*whole[:-changed], *others]], _SEEN + BEHIND)[0]
            errors.append(_change(logits[:-changed], first[:-changed]))
        return errors

    def _chain_after_a_rejection(self) -> Sequence[Tensor]:
        self._first = self._begin()
        self._once_rejected = self._behind_rejected(self._wrong)
        return [logit_error(self._once_rejected, self._plain[0, :4])]

    def _behind_rejected(self, wrong: Sequence[int]) -> Tensor:
        """Verify a chain behind the prompt, reject it, and evaluate a step and a chain in its place."""
        self._back(self._committed - 1)
        before = self._evaluate([self._first, *wrong], chain_tree(3))[:1]
        self._decoder.cache.commit(self._committed, [])
        root = self._evaluate([self._root], chain_tree(0))  # a step of plain decoding
        return torch.cat([before, root, self._evaluate(self._chain, chain_tree(1))])

    def _back(self, length: int) -> None:
        """Go back to the beginning of the text, one token around the end of its prompt; states are made anew."""
        if self._decoder.recurrent:
            self._begin()
            if length == self._committed:
                self._evaluate([self._first], chain_tree(0))
        else:
            self._decoder.length = length

    def _verify(self, nodes: Sequence[int], batch: bool, tree: Tree = TREE) -> Tensor:
        """Verify a tree behind the committed text, its nodes in one sequence or its paths as a batch."""
        self._back(self._committed)
        forward = self._decoder.forward_paths if batch else self._decoder.forward
        return forward(torch.tensor([self._root, *nodes], device=self._device), tree)

    def _tree(self, batch: bool) -> Sequence[Tensor]:
        """Verify a tree behind another one of its size, commit a path of it, and evaluate a step and a chain behind;
        return the errors of its nodes, those far from their place in a chain apart, and of what is behind.
        """
        begin, decoder = self._committed, self._decoder
        self._verify(self._nodes, batch, _OTHER_TREE)
        self._tree_found = found = self._verify(self._nodes, batch)[self._compared]
        if batch:
            decoder.cache.commit(begin, range(begin, begin + 1 + len(_PATH)), path_batch(TREE).sequence_of(_PATH))
        else:
            decoder.cache.commit(begin + 1, [begin + 1 + node for node in _PATH])
        step = self._evaluate(self._behind[:1], chain_tree(0))
        behind = torch.cat([step, self._evaluate(self._behind[1:], chain_tree(1))])
        nodes = logit_error(found, self._plain_tree)
        far = sum(row < _FAR for row in self._compared)
        return [nodes[:far], nodes[far:], logit_error(behind, self._plain[-1, 4:7])]

    def _other_branches(self, batch: bool) -> Sequence[Tensor]:
        """Compare the committed path and what follows with those of `_tree`, in a tree whose other nodes all differ."""
        path = TREE.path(_LAST)
        others = [self._nodes[node] if node in path else self._others[node % BEHIND] for node in range(len(TREE))]
        kept = [0, *(1 + node for node in path)]
        before = self._tree_found[[self._compared.index(row) for row in kept]]
        # The text behind the path of that call stands in these slots now; what is evaluated is a new draft.
        return [_change(self._verify(others, batch)[kept], before)]

    def _texts_in_one_call(self) -> Sequence[Tensor]:
        """Evaluate a tree behind this text and chains behind two shorter ones in one call, commit another number of
        tokens of each, and evaluate a chain behind all; return the errors of each text.
        """
        found, ragged, texts = self._first_of_three(self._prompt)
        self._first_text = found[0]
        errors, accepted = [logit_error(found[0], self._plain_tree)], (2, 1, 0)
        ragged.commit(0, _PATH)
        for slot in (1, 2):
            ragged.commit(slot, range(accepted[slot]))
        chains = [self._after[1 + count : 4 + count] for count in accepted]
        behind = ragged.forward(range(3), [torch.tensor(chain, device=self._device) for chain in chains])
        plain = [self._plain[-1], *(plain_logits(self._decoder, text, [self._after])[0] for text in texts[1:])]
        errors += [logit_error(logits, alone[1:5]) for logits, alone in zip(found[1:], plain[1:], strict=True)]
        ends = zip(behind, plain, accepted, strict=True)
        return errors + [logit_error(logits, alone[2 + count : 5 + count]) for logits, alone, count in ends]

    def _first_of_three(self, shorter: Sequence[int]) -> tuple[list[Tensor], RaggedDecoder, list[list[int]]]:
        """Begin this text and two that are shorter, which begin with `shorter`, and verify a draft of each in one call;
        return the logits of each draft, those of the tree as they are compared; the decoder; the three texts.
        """
        decoder, count = self._decoder, len(self._prompt)
        assert isinstance(decoder, Decoder)
        cycle = (list(shorter) * count)[:count]
        texts = [self._prompt, cycle[: -(-count // 2)], cycle[:1]]
        ragged = RaggedDecoder(decoder, len(texts))
        ragged.reserve(count + len(TREE) + BEHIND)
        for slot in (2, 0, 1):  # the slots are not in the order of the rows, and the shortest text is in the first
            ragged.start(slot, [*texts[slot], self._root])
        drafts = [[self._root, *self._nodes], self._after[:4], self._after[:4]]
        tokens = [torch.tensor(draft, device=self._device) for draft in drafts]
        found = ragged.forward(range(3), tokens, [TREE, chain_tree(3), chain_tree(3)])
        return [found[0][self._compared], *found[1:]], ragged, texts

    def _prefill_in_pieces(self) -> Sequence[Tensor]:
        if isinstance(self._decoder, Seq2SeqDecoder):  # its prompt goes to the encoder
            return [torch.zeros(1)]
        last = self._begin(chunk=max(1, (len(self._prompt) - 1) // 2))
        found = self._evaluate([last, self._root, *self._chain], chain_tree(3))
        return [logit_error(found, self._plain[0, :4])]

    def _static_call(self) -> Sequence[Tensor]:
        """Make two calls of fixed shape, as a captured loop does: the cache learns of its length only afterwards."""
        decoder = self._decoder
        assert isinstance(decoder, Decoder)
        text = torch.tensor([self._begin(), self._root, *self._chain], device=self._device)
        prefix = torch.tensor([decoder.length], device=self._device)
        call = static_pass(decoder.model, decoder.cache, decoder.windows)
        found = [call(text[:2], prefix).logits, call(text[2:], prefix + 2).logits]
        return [logit_error(torch.cat(found), self._plain[0, :4])]

    def _text_across(self, border: int) -> Sequence[Tensor]:
        """Decode a text across the length `border` in two calls, behind a prefill that ends before it."""
        decoder = self._decoder
        text = tokens_of(decoder, border + 4)
        prompt, rest = text[: max(2, border - 3)], text[max(2, border - 3) :]
        plain = plain_logits(decoder, prompt, [rest])[0]
        root = decoder.start(prompt, len(text) + 1)
        found = [self._evaluate([root, *rest[:3]], chain_tree(3)), self._evaluate(rest[3:], chain_tree(len(rest) - 4))]
        return [logit_error(torch.cat(found), plain)]

    def _begin(self, chunk: int = 1 << 30) -> int:
        """Begin the text, with pieces of `chunk` tokens; return its last token, which is not evaluated yet."""
        decoder, more = self._decoder, len(self._prompt) + len(TREE) + BEHIND
        decoder.prefill_chunk = chunk
        if isinstance(decoder, Seq2SeqDecoder):
            decoder.start(self._read, len(self._read) + more)
            if len(self._prompt) > 1:
                self._evaluate(self._prompt[:-1], chain_tree(len(self._prompt) - 2))
        else:
            decoder.start(self._prompt, more)
        self._committed = decoder.length + 1
        return self._prompt[-1]

    def _evaluate(self, tokens: Sequence[int], tree: Tree) -> Tensor:
        return self._decoder.forward(torch.tensor(tokens, device=self._device), tree)


def logit_error(found: Tensor, plain: Tensor) -> Tensor:
    """Return how far logits [N, V] are from the plain ones, for each of N tokens, as a share of the latter's spread.

    Both are centred over V, because a constant changes no law. A distance between laws would be less sharp: any two
    laws that are nearly uniform, as those of random weights, are close to each other.
    """
    found, plain = found.detach().cpu(), plain.detach().cpu()
    # Models give tokens that they never choose -inf, or the lowest number there is.
    usable = torch.stack([row.double().abs() < 1e30 for row in plain]).all(0)
    errors = []
    for rows in zip(found, plain, strict=True):  # one by one: all in float64 would take memory on a large vocabulary
        ours, theirs = (row - row.mean() for row in (row[usable].double() for row in rows))
        error = (ours - theirs).norm() / theirs.norm().clamp_min(1e-30)
        errors.append(float(error) if ours.isfinite().all() else inf)
    return torch.tensor(errors, dtype=torch.float64)


def _change(found: Tensor, before: Tensor) -> Tensor:
    """Return the error of logits that should be the same bits: 0 for each token where they are."""
    same = torch.tensor([torch.equal(one, other) for one, other in zip(found, before, strict=True)])
    return torch.where(same, 0.0, logit_error(found, before).clamp_min(1e-30))


def plain_logits(
    decoder: AnyDecoder, prompt: Sequence[int], texts: Sequence[Sequence[int]], read: Sequence[int] = ()
) -> Tensor:
    """Return the logits [B, L+1, V] of B texts of L tokens after one prompt, by forward passes without a cache. The
    prompt of an encoder-decoder begins with its start token, and its encoder reads `read`.
    """
    if isinstance(decoder, Seq2SeqDecoder):
        whole = [[*prompt[1:], *text] for text in texts]
        return torch.stack([logits[len(prompt) - 1 :] for logits in decoder.scores(read, whole)])
    whole, wanted = [[*prompt, *text] for text in texts], len(texts[0]) + 1
    if len(prompt) > ONE_BY_ONE:
        return torch.cat([_last_logits(decoder, [text], wanted) for text in whole])
    return _last_logits(decoder, whole, wanted)


def _last_logits(decoder: Decoder, texts: Sequence[Sequence[int]], wanted: int) -> Tensor:
    """Return the logits [B, N, V] at the last N places of texts of one length, by a forward pass without a cache."""
    # As many logits as are needed, where the model can limit them: those of a large vocabulary take memory.
    options = dict.fromkeys(decoder.prefill_options, wanted)
    tokens = torch.tensor(texts, device=decoder.device)
    return decoder.model(input_ids=tokens, use_cache=False, **options).logits[:, -wanted:]


def tokens_of(decoder: AnyDecoder, count: int, offset: int = 0) -> list[int]:
    """Return `count` tokens that mean nothing special to the model, different ones as far as there are."""
    config = decoder.model.config.get_text_config()
    names = ("pad", "bos", "mask", "sep", "cls", "unk", "decoder_start")
    named = {getattr(config, f"{name}_token_id", None) for name in names}
    special = named | decoder.end_tokens
    usable = [token for token in range(min(decoder.vocab_size, 4096)) if token not in special]
    usable = usable or list(range(decoder.vocab_size))
    step = next(step for step in range(len(usable) * 5 // 8, 2 * len(usable) + 2) if gcd(step, len(usable)) == 1)
    return [usable[(1 + step * (place + offset)) % len(usable)] for place in range(count)]
