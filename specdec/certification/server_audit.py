"""Audits a running server against the same weights opened here (ends and limits, greedy outputs, sampled tokens), and
makes its certificate.

It sees texts and never the server's rounds. So a class of fault is inferred from the place of a text at which
differences begin: the first token comes from the prefill; the second is the first that was drafted, or that follows a
rejection; a bonus token follows a whole draft, and stale state a rejection.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from specdec.certification.certificate import Certificate, Check, judged, not_applicable
from specdec.certification.server_client import Client, Completion, ServerFault, http, model_of
from specdec.certification.statistical import Texts
from specdec.config import CertificateConfig, ServerConfig
from specdec.errors import SpecdecError, UsageError
from specdec.folder.identity import write_config
from specdec.plan.plan import Plan
from specdec.progress import stage
from specdec.session.parts import loading, open_parts
from specdec.session.rescoring import rounding_error
from specdec.targets import Target

Fault = Literal[
    "end token", "limit", "kernels", "other model", "first token", "residual", "stale state", "bonus token",
    "another q", "temperature",
]  # fmt: skip
"""Classes of faults. "residual" is the token at a rejection: drawn from another law than the residual, or from the row
of another token, or a draft token that was kept without being verified; texts do not tell these apart."""

SAID: dict[Fault, str] = {
    "end token": "texts go on after an end token, or end where the model does not",
    "limit": "texts that end at the limit have another number of tokens than that",
    "kernels": "greedy tokens differ by small margins alone, as of quantised or batched kernels, which are another "
    "reference: a server.tolerance of half the largest margin takes them for near-ties",
    "other model": "texts differ from their first token on: other weights, kernels, template, tokenizer or temperature",
    "first token": "the first token alone differs, which the prefill gives",
    "residual": "tokens differ from the second on, where the first draft begins: the token at a rejection is not drawn "
    "from the residual, or a draft token was kept unverified",
    "stale state": "tokens differ after the first rejection and not before: something of rejected tokens is left",
    "bonus token": "tokens are right up to a whole draft, and differ after it: the bonus token is drawn wrongly",
    "another q": "tokens differ from the second on, mildly: drafts were drawn from another law than the q they were "
    "accepted with",
    "temperature": "tokens after the first follow the law at temperature 1, not the one that was asked for",
}

LIMITS = (
    "The reference is these weights as they are opened here. Quantised or batched kernels of a server compute other "
    "logits: that is another reference, and server.tolerance says by how much they may differ without a fault.",
    "A smaller bias than stated may have been missed, as of drafts drawn in bfloat16 beside a q in float32.",
    "The class is told from the place where differences begin, for servers whose prefill gives the first token.",
    "Whether the server drafted at all is not seen; speed, chat templates and cuts such as top_p are no part of it.",
)

KERNEL_MARGIN = 0.5
"""Logits by which greedy tokens differ where arithmetic alone is at fault; a rejected token is usually farther off."""

Complete = Callable[[Sequence[int], int, float, int], Completion]  # prompt, limit, temperature and seed to a text

# Bets ---------------------------------------------------------------------------------------------
# A bet on a statistic f multiplies its wealth by e^(theta f(x)) / sum_y p(y) e^(theta f(y)), which is 1 in the mean
# where x is drawn from p, whatever came before. So wealth, and every fixed average of wealths, is a nonnegative
# martingale from 1, and exceeds 1 / chance ever with at most that chance: the test may be stopped at any time (Ville;
# Ramdas et al. 2210.01948, sections 2 and 3).

STATISTICS = ("likeliest", "second", "rare", "copied", "end", "likelihood")
"""Statistics that are bet on: five say whether the token is the likeliest one, the second likeliest, one that is at
least a hundred times less likely than the likeliest, the one that followed the last token before, and an end token;
the last is its log-likelihood, on which a bet is one on p at another temperature."""
THETAS = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0])  # sizes of the bets
_QUANTILE = 1.2816  # of the normal law, at the power of 0.9 that is stated


def log_bets(p: np.ndarray, drawn: np.ndarray, copied: np.ndarray, end: int, shift: float = 0.0) -> np.ndarray:
    """Return the logarithms [N, K, T] by which each of the tokens `drawn` [N] from the laws p [N, V], in float64,
    multiplies the wealth of each statistic K and size T. The tokens that copying would give are `copied` [N], -1 where
    there is none, and `end` is the end token or -1. Under a law that is still right, the logarithm of the odds of any
    set of tokens may differ from those of p by `shift`; such laws multiply no wealth by more than 1 in the mean either.
    """
    rows = np.arange(len(p))
    chance = p[rows, drawn]
    top = p.argmax(1)
    others = p.copy()
    others[rows, top] = 0.0
    rare = p < 0.01 * p[rows, top, None]
    marked = np.stack([top, others.argmax(1), copied, np.full(len(p), end)], 1)  # [N, 4] tokens
    share = np.where(marked >= 0, p[rows[:, None], marked], 0.0)
    share = np.insert(share, 2, (p * rare).sum(1), axis=1)[..., None]  # [N, 5, 1]
    hit = np.insert(marked == drawn[:, None], 2, rare[rows, drawn], axis=1)[..., None]
    odds = np.exp(shift * np.sign(THETAS))  # the worst that the shift allows for each bet
    share = share * odds / (1 - share + share * odds)
    bets = np.empty((len(p), len(STATISTICS), len(THETAS)))
    bets[:, :-1] = hit * THETAS - np.log1p(share * np.expm1(THETAS))
    with np.errstate(divide="ignore"):
        logarithm = np.where(p > 0, np.log(p), 0.0)
    tilted = np.where(p > 0, logarithm, -np.inf)[:, None] + THETAS[:, None] * logarithm[:, None]  # [N, T, V]
    bets[:, -1] = THETAS * logarithm[rows, drawn, None] - _log_sum(tilted, (2,)) - shift
    bets[chance == 0] = np.inf
    return bets


def log_evidence(wealth: np.ndarray) -> np.ndarray:
    """Return the logarithm [...] of the e-value of all bets, by their summed logarithms [..., G, K, T] at each place G:
    a quarter bets at every place of a text, a quarter at the first alone, and half at all places from some place on.
    """
    from_on = tails(wealth)
    parts = (log_mean(from_on[..., 0, :, :], 2), log_mean(wealth[..., 0, :, :], 2), log_mean(from_on[..., 1:, :, :], 3))
    return _log_sum(np.stack(parts, -1) + np.log([0.25, 0.25, 0.5]), (-1,))


def tails(wealth: np.ndarray) -> np.ndarray:
    """Return the wealth [..., G, K, T] of bets at all places from each on, given that at each place."""
    return wealth[..., ::-1, :, :].cumsum(-3)[..., ::-1, :, :]


def log_mean(wealth: np.ndarray, axes: int) -> np.ndarray:
    """Return the logarithm of the mean of wealths over their last axes, which is an e-value again."""
    last = tuple(range(-axes, 0))
    return _log_sum(wealth, last) - log(np.prod([wealth.shape[axis] for axis in last]))


def _log_sum(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the logarithm of the sum of exponentials, a third of the time of scipy's for few values."""
    top = values.max(axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total: np.ndarray = np.log(np.exp(values - top).sum(axes)) + top.squeeze(axes)
    return total


def detectable(draws: int, false_alarm: float) -> float:
    """Return the shift of probability between halves of a law, at every place or at the first, that is found in 9 cases
    of 10 before so many tokens are drawn where it is: the wealth of the best bet grows by 2 shift^2 in the mean, with
    deviation 2 shift, and has to pay for all other bets.
    """
    wanted = log(4 * len(STATISTICS) * len(THETAS) / false_alarm)
    return min(1.0, (_QUANTILE + sqrt(_QUANTILE**2 + 2 * wanted)) / 2 / sqrt(max(draws, 1)))


@dataclass(frozen=True)
class Wrong:
    """A token of a greedy text that is not the reference's `best`, after the server's own tokens before it."""

    prompt: str
    place: int
    token: int
    best: int
    margin: float  # by which the float32 logit of `best` is larger
    rounding: float  # by which rounding may change a logit there
    end: bool  # one of the two is an end token


@dataclass
class Audit:
    """The findings on one server so far; every check can be made at any time."""

    target: Target
    config: ServerConfig
    temperature: float
    false_alarm: float  # the largest chance with which a faultless server is refuted
    ended: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    ties: int = 0
    texts: dict[str, int] = field(default_factory=lambda: {"greedy": 0, "sampled": 0, "unread": 0, "unscored": 0})
    compared: int = 0
    peak: float = 0.0  # the largest evidence so far: what refutes once, stays refuted

    def __post_init__(self) -> None:
        self.wealth = np.zeros((self.config.places, len(STATISTICS), len(THETAS)))  # [G, K, T] logarithms, by place
        self.draws = np.zeros(self.config.places, dtype=int)  # [G] tokens drawn there

    @property
    def refuted(self) -> bool:
        return self.peak >= log(1 / self.false_alarm)

    @property
    def asked(self) -> int:
        """Texts that the server wrote."""
        return self.texts["greedy"] + self.texts["sampled"]

    def run(self, complete: Complete, texts: Texts, outputs: int, limit: int, seed: int) -> None:
        """Ask for greedy texts of at most `limit` tokens after the first `outputs` prompts, then for sampled ones after
        the first `config.prompts` until they refute the server, and as many again to name the class, or until none are
        left. Raises ServerFault: the server fails; what was found until then is kept.
        """
        stop = time.monotonic() + self.config.budget_seconds
        with stage("Compare outputs", total=outputs, shorter="certificate.outputs=N compares fewer") as under_way:
            for number, (name, prompt) in enumerate(texts[:outputs]):
                self.judge_greedy(name, prompt, complete(prompt, limit, 0.0, seed + number), limit)
                under_way.advance()
                if time.monotonic() > stop:
                    break
        places, most = self.config.places, self.config.texts
        last = most
        with stage("Draw texts", total=most, shorter="server.texts=N draws fewer") as under_way:
            for number in range(most):
                name, prompt = texts[number % min(self.config.prompts, len(texts))]
                self.judge_drawn(name, prompt, complete(prompt, places, self.temperature, seed + number + 1), places)
                under_way.advance()
                if self.refuted and last == most:
                    last = min(most, 2 * number + 100)
                if self.unread or number + 1 >= last or time.monotonic() > stop:
                    break

    @property
    def unread(self) -> bool:
        """True where some sampled texts came without tokens: those with tokens are a choice, which follows no law."""
        return self.texts["unread"] > 0

    def read(self, name: str, answer: Completion, limit: int) -> list[int] | None:
        """Return a text's tokens through its first end token, and note a wrong end; None where it cannot be scored."""
        tokens = answer.tokens
        if tokens is None and self.target.tokenizer is not None:
            encoded = self.target.tokenizer.encode(answer.text, add_special_tokens=False)
            if answer.counted in (len(encoded), len(encoded) + (answer.finish == "stop")):
                tokens = tuple(encoded)
        if tokens is None:
            self.texts["unscored"] += 1
            return None
        kept, ends = list(tokens), self.target.end_tokens
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        if end is not None and end + 1 < len(tokens):
            self.ended.append(f"{name} has {len(tokens) - end - 1} tokens after the end token at place {end + 1}")
            kept = kept[: end + 1]
        if len(tokens) > limit or (answer.finish == "length" and len(tokens) < limit and end is None):
            self.limited.append(f"{name} has {len(tokens)} of {limit} tokens")
        if answer.finish == "stop" and end is None and ends:
            kept.append(min(ends))  # which servers leave out
        return kept

    def judge_greedy(self, name: str, prompt: Sequence[int], answer: Completion, limit: int) -> None:
        """Score every token of a greedy text after the tokens before it, in float32."""
        self.texts["greedy"] += 1
        tokens = self.read(name, answer, limit)
        if not tokens:
            return
        scored = self.target.score(prompt, tokens[:-1])  # [S, V]
        narrow = self.target.score_as_decoded(prompt, tokens[:-1])
        ends = self.target.end_tokens
        self.compared += len(tokens)
        for place, token in enumerate(tokens):
            wide = scored[place].double()
            best = int(wide.argmax())
            if token == best or ends >= {token, best}:
                continue
            margin, rounding = float(wide[best] - wide[token]), rounding_error(scored[place], narrow[place])
            if margin <= 2 * max(rounding, self.config.tolerance):
                self.ties += 1
            else:
                self.wrong.append(Wrong(name, place, token, best, margin, rounding, bool(ends & {token, best})))

    def judge_drawn(self, name: str, prompt: Sequence[int], answer: Completion, limit: int) -> None:
        """Bet on every token of a sampled text. All end tokens count as one, as servers do not tell which it was."""
        self.texts["sampled"] += 1
        if answer.tokens is None:
            self.texts["unread"] += 1
        tokens = self.read(name, answer, limit)
        if answer.tokens is None or not tokens:
            return
        tokens = tokens[:limit]
        p = torch.softmax(self.target.score(prompt, tokens[:-1]).double() / self.temperature, -1).cpu().numpy()
        ends = sorted(self.target.end_tokens)
        if ends:
            p[:, ends[0]] = p[:, ends].sum(1)
            p[:, ends[1:]] = 0.0
            tokens = [ends[0] if token in ends else token for token in tokens]
        follows, copied = dict[int, int](), list[int]()  # what came behind each token when it was last there
        for before, token in pairwise([*prompt, *tokens]):
            copied.append(follows.get(before, -1))
            follows[before] = token
        shift = 2 * self.config.tolerance / self.temperature
        bets = log_bets(p, np.array(tokens), np.array(copied[len(prompt) - 1 :]), ends[0] if ends else -1, shift)
        self.wealth[: len(tokens)] += bets
        self.draws[: len(tokens)] += 1
        self.peak = max(self.peak, float(log_evidence(self.wealth)))

    def faults(self) -> list[Fault]:
        """Return the classes of the faults that were found, those that texts tell most surely first."""
        found: list[Fault] = []
        only_ends = all(each.end for each in self.wrong)
        if self.ended or (self.wrong and only_ends):
            found.append("end token")
        if self.limited:
            found.append("limit")
        places = [each.place for each in self.wrong]
        if only_ends:
            found += [self._drawn_fault()] if self.refuted else []
        elif max(each.margin for each in self.wrong) <= KERNEL_MARGIN:
            found.append("kernels")
        elif places.count(0) > self.texts["greedy"] / 2:
            found.append("other model")
        elif any(places):
            found.append("residual" if min(place for place in places if place) == 1 else "stale state")
        else:
            found.append("first token")
        return found

    def _drawn_fault(self) -> Fault:
        """Return what the places say at which sampled tokens differ, where no greedy token does.

        The bet that won most since some place tells. That it began to win after the second place has to be likelier
        than that it wins from there on, by a factor of the places where it might have begun.
        """
        enough, from_on = log(1 / self.false_alarm), tails(self.wealth)
        first, later = (float(log_mean(each, 2)) for each in (self.wealth[0], from_on[1]))
        if first >= enough:
            return "other model" if later >= enough else "first token"
        onset, statistic, theta = np.unravel_index(int(from_on[1:].argmax()), from_on[1:].shape)
        if onset and from_on[1 + onset, statistic, theta] - from_on[1, statistic, theta] > log(len(from_on) - 2):
            return "bonus token"
        statistic, theta = np.unravel_index(int(from_on[1].argmax()), from_on[1].shape)
        if STATISTICS[statistic] == "rare" and THETAS[theta] > 0:
            return "residual"
        towards_one = THETAS[theta] * (self.temperature - 1) > 0
        return "temperature" if STATISTICS[statistic] == "likelihood" and towards_one else "another q"

    def checks(self) -> list[Check]:
        """Return the three checks as they stand."""
        texts, faults, strays = self.asked, self.faults(), [*self.ended, *self.limited]
        told = "; ".join(SAID[each] for each in faults)
        compared, scored = "the protocol: max_tokens, and nothing after an end token", texts - self.texts["unscored"]
        statistic, fault = f"{len(strays)} of {texts} texts are wrong", "; ".join(strays[:3])
        facts = {"texts": self.texts, "end": len(self.ended), "limit": len(self.limited), "classes": faults}
        checks = [judged("exact", "ends and limits", compared, scored, statistic, fault, facts=facts)]
        if self.compared:
            worst = "; ".join(
                f"{each.prompt}, token {each.place + 1}: margin {each.margin:.2g}, rounding {each.rounding:.2g}"
                for each in self.wrong[:3]
            )
            compared = "the reference after the same tokens, in float32"
            statistic = f"{len(self.wrong)} wrong, {self.ties} near-ties"
            fault, facts = f"{told} ({worst})" if self.wrong else "", {"wrong": [vars(each) for each in self.wrong]}
            checks.append(judged("greedy", "greedy tokens", compared, self.compared, statistic, fault, facts=facts))
        else:
            checks.append(not_applicable("greedy", "greedy tokens", "no greedy text could be scored"))
        if self.unread or not self.draws.any():
            why = "the server gives text without its tokens, of which no other text than the usual one can be told"
            checks.append(not_applicable("statistical", "sampled tokens", why if self.unread else "nothing was drawn"))
        else:
            compared, drawn = f"the reference's law at temperature {self.temperature:g}", int(self.draws.sum())
            statistic, fault = f"e = {exp(min(self.peak, 600)):.3g}", told if self.refuted else ""
            facts = {"draws": self.draws.tolist(), "by_place": log_mean(self.wealth, 2).round(2).tolist()}
            shown = {"p_value": min(1.0, exp(-self.peak)), "facts": facts}
            checks.append(judged("statistical", "sampled tokens", compared, drawn, statistic, fault, **shown))
        return checks

    def power(self) -> list[str]:
        """Return what the sampled texts would have shown, in words; nothing where none can be judged."""
        if self.unread or not self.draws.any():
            return []
        drawn, once = int(self.draws.sum()), int(self.draws.max())
        return [
            f"at every place, a shift of {detectable(drawn, self.false_alarm):.3f} of probability between the "
            f"tokens that one bet names and the others ({drawn:,} tokens)",
            f"at the first token alone, a shift of {detectable(once, self.false_alarm):.3f} ({once:,} tokens)",
        ]


def certify_server(plan: Plan, asked: ServerConfig, certificate: CertificateConfig, folder: Path) -> Certificate:
    """Audit a server, print the table, and write `certificate.json`, also before it raises NotLossless (outputs are
    refuted) or ServerFault (it fails midway). UsageError: it cannot be asked at all, or not about these weights.
    """
    sampling = plan.sampling
    cuts = [name for name in ("top_k", "top_p", "min_p", "typical_p") if getattr(sampling, name) is not None]
    if sampling.greedy or cuts:
        named = f"sampling.{cuts[0]}" if cuts else "sampling.temperature=0"
        raise UsageError(
            f"Bad value {named}: servers cut laws in other orders, and a greedy audit is made beside the sampled one; "
            "use a temperature above 0 alone."
        )
    ask = http(asked.url, asked.timeout_seconds)
    try:
        model = model_of(ask, asked.url, asked.model)
    except ServerFault as fault:
        raise UsageError(str(fault)) from None
    with loading(plan):
        parts = open_parts(plan)
    client = Client(ask, asked.url, model, parts.target.tokenizer, parts.target.vocab_size)
    write_config(folder, plan.config)
    texts = [(prompt.id, prompt.tokens) for prompt in parts.prompts.prompts]
    audit = Audit(parts.target, asked, sampling.temperature, certificate.false_alarm)
    broken: SpecdecError | None = None
    try:
        audit.run(client.complete, texts, certificate.outputs, parts.limit, plan.seed)
    except SpecdecError as fault:
        if not audit.asked:
            raise UsageError(str(fault)) if isinstance(fault, ServerFault) else fault from None
        broken = fault
    faults = audit.faults()
    sentence = "; ".join(f"{each}: {SAID[each]}" for each in faults)
    sentence = f"Refuted ({sentence})." if faults else f"Not refuted by {audit.asked} texts."
    if broken is not None:
        sentence = f"{sentence} The audit broke off: {broken}"
    answered = {name: value for name, value in client.answered.items() if value is not None}
    notes = list(LIMITS)
    if not client.neutral:
        notes.append("The server refuses options that leave the law uncut: its own defaults may cut it.")
    made = Certificate(
        outcome="not lossless" if faults else "not refuted",
        sentence=sentence,
        combination={"server": asked.url, "model": client.model, "target": plan.model, **answered},
        checks=audit.checks(),
        power=audit.power(),
        limits=notes,
    )
    asked_of = {"requests": client.requests, "seconds": client.seconds, "prompts": client.prompts}
    made.publish(parts, certificate.false_alarm, folder, server=asked_of)
    if broken is not None:
        raise broken
    return made
