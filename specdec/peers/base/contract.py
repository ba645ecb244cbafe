"""The contract of another engine on the same models and prompts, in the same process, between our own generations; and
the peers of one run together.

An engine has up to three peers, each set against the arm of ours that does the same: plain generation, generation with
the same small model as drafter, prompt lookup with the same match length. A peer that fails says why and stops; the run
goes on without it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from typing import Any, ClassVar

import torch

from specdec.config import BASELINE
from specdec.drafters.base import Drafter
from specdec.errors import in_one_line
from specdec.prompts import Prompt
from specdec.registry import Registry
from specdec.sampling import SamplingConfig
from specdec.signals import raise_swallowed
from specdec.structures import Structure
from specdec.targets.base import Target
from specdec.targets.causal import Causal

logger = logging.getLogger(__name__)

_TIMED_CALLS = 3  # of each setting, after the one that warms up

GENERATE, ASSISTED, PROMPT_LOOKUP = "generate", "assisted", "prompt_lookup"
"""The kinds of peers: plain generation, speculation with a small model, speculation with matches in the text."""


class LeftOut(Exception):
    """An engine, or one of its peers, cannot take part; the sentence says why and stands in the place of its ratio."""


@dataclass(frozen=True)
class Work:
    """The part of a run that other engines are set against."""

    target: Causal
    drafter: Drafter
    drafter_values: Mapping[str, Any]  # the drafter's configuration
    structure: Structure  # the primary one
    max_new_tokens: int  # the most tokens of an output
    longest: int  # the most tokens of a prompt with its output
    seed: int  # of the run, for engines that sample

    @property
    def kinds(self) -> dict[str, tuple[str, int]]:
        """The kinds of peers that have an arm of ours to be set against, with its method and gamma. Other engines draft
        chains, so rows and trees have plain generation only.
        """
        found, name = {GENERATE: (BASELINE, 0)}, self.drafter_values["name"]
        kind = {"small_model": ASSISTED, "ngram": PROMPT_LOOKUP}.get(name)
        if kind is not None and self.structure.single:
            found[kind] = (name, self.structure.gamma)
        return found

    @property
    def match_length(self) -> int:
        """The longest match of our `ngram` drafter, in tokens."""
        q = self.drafter_values["q"]
        return q if isinstance(q, int) else int(self.drafter_values["order_max"])


@dataclass(frozen=True)
class Setting:
    """One way to run a peer."""

    name: str  # in words, for tables
    options: Mapping[str, Any]  # what the engine is given, beside the method's own options


class Peer(ABC):
    """One way of another engine to generate, at the fastest of its settings. Its time includes its prefill, so it is
    set against ours with prefill; tokens are counted by our one rule (`specdec.decode.cut`).
    """

    # It computes with a copy of the weights in its own format, so that its text is checked before it is trusted.
    converted: ClassVar[bool] = False

    def __init__(self, name: str, kind: str, work: Work, settings: Sequence[Setting]) -> None:
        """Make a peer that drafts as its `kind` says, in the first of its settings until `tune` has tried them."""
        self.name = name  # as in the metric `peer/<name>.ratio`
        self.ours = work.kinds[kind]  # method and gamma of the arm that it is set against
        self.failure = ""  # why it does not run, or ran no further; "" while it runs
        self._kind, self._work, self._target = kind, work, work.target
        self._settings = list(settings)
        self._chosen = self._settings[0]
        self._tried: list[dict[str, Any]] = []

    def prepare(self) -> None:
        """Make what this peer alone needs. May raise anything, such as LeftOut: then this peer alone is left out."""

    def close(self) -> None:
        """Free what is open; the next generation opens it anew."""

    @abstractmethod
    def generate(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        """Return the new tokens of a fresh text by our rule, and seconds with prefill. May raise anything."""

    def tune(self, prompt: Prompt) -> None:
        """Warm up, check and time every setting on `prompt`; keep the fastest that runs."""
        fastest = float("inf")
        greedy = replace(self._target.sampling, temperature=0.0)
        for setting in self._settings:
            try:
                tokens, _ = self._generated(prompt, setting, greedy)
                if self.converted and (fault := departure(self._target, prompt.tokens, tokens)):
                    raise LeftOut(fault)
                sampling = self._target.sampling
                seconds = min(self._generated(prompt, setting, sampling)[1] for _ in range(_TIMED_CALLS))
            except Exception as error:  # engines and compilers raise some ten unrelated types here
                raise_swallowed()
                self._tried.append({"setting": setting.name, "failed": failure_in_words(error)})
                continue
            self._tried.append({"setting": setting.name, "seconds": seconds})
            if seconds < fastest:
                fastest, self._chosen = seconds, setting
        if fastest == float("inf"):
            self.failure = self._tried[0]["failed"]

    def keep(self, prompt: Prompt, before: Mapping[str, Any], running: bool) -> None:
        """Warm up in the setting that an earlier sitting of the run has chosen, by what `describe` said then, instead
        of choosing again; `running` if it still ran at the last prompt of that sitting.
        """
        self._tried = list(before["tried"])
        self._chosen = next((each for each in self._settings if each.name == before["setting"]), self._chosen)
        self.failure = before["failure"] if running or before["failure"] else "before the run was interrupted"
        if not self.failure:
            self(prompt)

    def __call__(self, prompt: Prompt) -> dict[str, Any] | None:
        """Time one generation; None once it has failed."""
        if self.failure:
            return None
        try:
            tokens, seconds = self._generated(prompt, self._chosen, self._target.sampling)
        except Exception as error:  # as in `tune`: another engine's fault does not end our run
            raise_swallowed()
            self.failure = f"at prompt {prompt.id}: {failure_in_words(error)}"
            return None
        return {
            "peer": self.name,
            "ours_method": self.ours[0],
            "ours_gamma": self.ours[1],
            "tokens": len(tokens),
            "seconds": seconds,
            "generated_token_ids": list(tokens),
        }

    def _generated(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        tokens, seconds = self.generate(prompt, setting, sampling)
        if not tokens:
            raise LeftOut("it wrote no token")
        return tokens, seconds

    def describe(self) -> dict[str, Any]:
        """Return for `peers.json` what was tried on the longest prompt, what was chosen, what failed."""
        return {
            "peer": self.name,
            "ours": {"method": self.ours[0], "gamma": self.ours[1]},
            "setting": self._chosen.name,
            "tried": self._tried,
            "failure": self.failure,
        }


class Engine(ABC):
    """Another engine: what it needs, and its peers for a run. `@engines.register("llama_cpp")` adds one."""

    # Modules that it imports, each with the distribution that has it; the first one's version is recorded.
    needs: ClassVar[Mapping[str, str]]
    extra: ClassVar[str] = ""  # of `pyproject.toml`, which installs them; "" for what every installation has

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def peers(self, work: Work, held: ExitStack) -> Sequence[Peer]:
        """Make a peer for each of `work.kinds` that the engine has; `held` takes what is to be deleted when the run has
        ended. Raises LeftOut: the engine cannot read the model, or sample as the run does.
        """

    @property
    def version(self) -> str:
        """The engine's main distribution with its version."""
        main = next(iter(self.needs.values()))
        return f"{main} {metadata.version(main)}"


engines: Registry[Engine] = Registry("peers", "measurement.peers")


def failure_in_words(error: Exception) -> str:
    """Return an error in one line of at most some 300 characters, an engine's refusal without its type."""
    words = in_one_line(error)
    return words if isinstance(error, LeftOut) else f"{type(error).__name__}: {words}"


# Two ways to compute one model in one format differ by a few of its rounding errors, which are seen as those between
# the target's own arithmetic and float32; where the target computes in float32 they are told by its logits' size.
_ROUNDINGS = 4.0
_RELATIVE = 1e-3


@torch.inference_mode()
def departure(target: Target, prompt: Sequence[int], text: Sequence[int]) -> str:
    """Say where a text, taken as greedy, has a token that no rounding makes the target's choice; "" if nowhere. Every
    token is judged after the text's own beginning: the target's float32 logit of it may lie below the highest one by a
    near-tie only.
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


class OpenedPeers:
    """The peers of one run together: tuned, and described for `peers.json`."""

    def __init__(self, work: Work | None) -> None:
        """Set peers against this work; None where none were asked for."""
        self.peers: list[Peer] = []  # those that can run, for the session
        self._engines: dict[str, dict[str, str]] = {}  # name of a peer -> its engine and version
        self._left_out: list[dict[str, str]] = []
        self._work = work

    def add(self, engine: Engine, held: ExitStack) -> None:
        """Open an engine's peers; what cannot run is left out with its reason, which is also logged."""
        assert self._work is not None
        try:
            if any(find_spec(module) is None for module in engine.needs):
                wanted = " and ".join(dict.fromkeys(engine.needs.values()))
                remedy = f"pip install -e '.[{engine.extra}]'"
                raise LeftOut(f"measurement.peers names {engine.name}, which needs {wanted}: {remedy}")
            made, about = engine.peers(self._work, held), {"engine": engine.name, "version": engine.version}
        except Exception as error:  # of somebody else's package, which may raise anything
            self._leave_out(engine.name, error)
            return
        for peer in made:
            held.callback(peer.close)
            try:
                peer.prepare()
            except Exception as error:
                self._leave_out(peer.name, error)
            else:
                self.peers.append(peer)
                self._engines[peer.name] = about

    def _leave_out(self, name: str, error: Exception) -> None:
        reason = failure_in_words(error) + "."
        logger.warning("Peer %s is left out: %s", name, reason)
        self._left_out.append({"peer": name, "reason": reason})

    def tune(self, longest: Prompt, before: Sequence[Mapping[str, Any]], last: set[str]) -> None:
        """Warm up and choose settings on the longest prompt. Those of an earlier sitting of the run stay as they were,
        by what `describe` said of them `before`, and which of them ran at its `last` prompt.
        """
        known = {each["peer"]: each for each in before}
        for peer in self.peers:
            if peer.name in known:
                peer.keep(longest, known[peer.name], peer.name in last)
            else:
                peer.tune(longest)
            if peer.failure:
                logger.warning("Peer %s is left out: %s", peer.name, peer.failure)

    def describe(self, generations: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
        """Return the content of `peers.json`, with what the peers wrote; None where no peers were asked for."""
        if self._work is None:
            return None
        target = self._work.target
        how = {None: "uncompiled", "trace": "traced", "inductor": "compiled"}[target.compilation]
        dtype = str(target.model.dtype).removeprefix("torch.")
        threads = "" if target.device.type == "cuda" else f", {torch.get_num_threads()} threads"
        described = []
        for peer in self.peers:
            about = peer.describe()
            ours = {**about["ours"], "setting": f"{how}, {dtype}{threads}"}
            described.append({**about, **self._engines[peer.name], "ours": ours})
        return {"peers": described, "left_out": self._left_out, "generations": list(generations)}


@contextmanager
def opened(names: Sequence[str], work: Work | None) -> Iterator[OpenedPeers]:
    """Open the peers of these engines, set against work, and close them when the run has ended, however it ends."""
    found = OpenedPeers(work)
    with ExitStack() as held:
        for name in dict.fromkeys(names):
            found.add(engines.get(name)(name), held)
        yield found
