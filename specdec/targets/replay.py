"""Recorded streams in place of a model: greedy decoding of outputs that another engine wrote, in simulated time, by
costs that were published (`conf/cost/`), or that a run measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

import torch
import yaml
from pydantic import Field
from torch import Tensor

from specdec.clock import SimulatedClock
from specdec.config import AtLeastOne, Named, NonEmpty, config_dir, typed, validated
from specdec.cost_model import DraftCost, SimulatedCost, fitted_calls, line_through, measured_cost
from specdec.errors import UsageError, near_misses
from specdec.records import Draft, TextStart, Tree
from specdec.sampling import SamplingConfig, one_hot
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target, TargetCapabilities, targets
from specdec.text.streams import Recording, Stream, open_recording

_BEYOND_END = 64  # tokens that a draft may offer beyond a recorded end token
_UNBOUNDED = 1 << 30  # tokens of context: there is no model to hold them


class Sizes(NamedTuple):
    """Sizes of a draft, or [N] of many: nodes, depth, and leaves, which are 0 in an empty one."""

    nodes: Any
    depth: Any
    leaves: Any

    @classmethod
    def of(cls, tree: Tree) -> "Sizes":
        return cls(len(tree), tree.depth, len(tree.leaves))


@dataclass(frozen=True)
class Price:
    """The seconds of drafts, and of the calls that verify them, by cost and evaluation of the target. With the
    evaluation "rows", each path of a draft that branches has a sequence and a cache; with "packed" all share one.
    """

    cost: SimulatedCost
    evaluation: str
    draft: DraftCost | None = None  # the seconds of a draft by a model; None for a drafter that looks tokens up

    def draft_s(self, sizes: Sizes, context: Any) -> Any:
        """Return the seconds of drafts behind `context` cached tokens; empty ones cost nothing."""
        if self.draft is not None:
            return self.draft.seconds(sizes.depth, context)
        return self.cost.lookup_seconds(self.verify_s(sizes, context)) * (sizes.nodes > 0)

    def verify_s(self, sizes: Sizes, context: Any) -> Any:
        """Return the seconds of the calls on these drafts and their roots, behind `context` cached tokens."""
        nodes, depth, leaves = sizes
        several = (self.evaluation == "rows") * (leaves > 1)
        rows = nodes + 1 + several * (leaves * (depth + 1) - nodes - 1)
        return self.cost.seconds(rows, context, 1 + several * (leaves - 1))


@typed
class ReplayConfig(Named, Recording):
    vocab_size: AtLeastOne | None  # null: the tokenizer's, or the largest id of the streams and one more
    end_tokens: list[Annotated[int, Field(ge=0)]]  # besides those that end a stream which says that it ended
    cost: NonEmpty  # a name in conf/cost, a YAML of that form, or a run's output folder
    evaluation: Literal["packed", "rows"]


@targets.register("replay")
class Replay(Target):
    """Chooses the recorded token at every position, so that greedy decoding writes the recorded text in exactly the
    rounds that the model which wrote it would have taken. A recording without an end token ends as at a limit.

    Greedy only. No call takes time: `clock` shows what calls would have taken by a cost model. A stream is found by its
    prompt; of several with the same prompt the first is used, because greedy decoding writes one text. `streams` has
    one per prompt, in the order of the file.
    """

    capabilities = TargetCapabilities(structures=EVERY_STRUCTURE, recorded=True)

    def __init__(self, config: ReplayConfig, sampling: SamplingConfig) -> None:
        """Raises UsageError: a temperature above 0; and see `open_recording` and `load_cost`."""
        if not sampling.greedy:
            raise UsageError(
                f"Bad value sampling.temperature={sampling.temperature}: target=replay knows the tokens that were "
                "chosen and not their probabilities, so it is greedy only; use sampling=greedy."
            )
        recorded = open_recording(config, "target", config.vocab_size)
        self._config, self._recorded = config, recorded
        self.evaluation = config.evaluation
        self.streams = recorded.streams
        self._by_prompt = {stream.prompt: stream for stream in self.streams}
        self.tokenizer = recorded.tokenizer
        known = recorded.largest + 1
        self.vocab_size = config.vocab_size or max(known, 0 if self.tokenizer is None else len(self.tokenizer))
        self.context_length = _UNBOUNDED
        self.end_tokens = frozenset(config.end_tokens) | {each.generated[-1] for each in self.streams if each.ended}
        self.device = torch.device("cpu")
        self.sampling = sampling
        self.cost = load_cost(config.cost)
        self.price = Price(self.cost, config.evaluation)  # of look-ups, and of calls on any drafts
        self._clock = SimulatedClock()
        self._text: tuple[int, ...] = ()
        self._context, self._position = 0, 0

    def stream(self, prompt: Sequence[int]) -> Stream:
        """Return the stream that begins with `prompt`; UsageError if none does."""
        found = self._by_prompt.get(tuple(prompt))
        if found is None:
            raise UsageError(
                f"No stream of target.path={self._config.path} has this prompt of {len(prompt)} tokens: target=replay "
                "decodes its own prompts only; use prompts=recorded."
            )
        return found

    def limit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        return self.stream(prompt).limit(max_new_tokens)

    @property
    def longest(self) -> int:
        """The limit at which every recorded text is written whole, with room for drafts beyond an end token: they were
        offered when the text was written.
        """
        return max(len(stream.generated) + (_BEYOND_END if stream.ended else 0) for stream in self.streams)

    def notes(self, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> tuple[str, ...]:
        """Say how much of the recorded texts after these prompts is replayed."""
        streams = [self.stream(prompt) for prompt in prompts]
        recorded = sum(len(stream.generated) for stream in streams)
        used = sum(min(max_new_tokens, len(stream.generated)) for stream in streams)
        said = f"Replayed: {len(streams):,} recorded texts, whole, {recorded:,} tokens."
        if used < recorded:
            said = f"Replayed: {used:,} of the {recorded:,} recorded tokens of {len(streams):,} texts, at most "
            said += f"{max_new_tokens:,} of each; measurement.max_new_tokens=null replays them whole."
        return *self._recorded.notes, said

    def clock(self) -> SimulatedClock:
        return self._clock

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """Return the seconds of the prefill: all of the prompt but its last token, in one call."""
        cached = len(prompt) - 1
        return float(self.cost.seconds(cached, 0)) if cached else 0.0

    def start(self, text: TextStart) -> None:
        self._text = self.stream(text.prompt).generated
        self._context, self._position = len(text.prompt) - 1, 0
        self._clock.advance(self.prefill_s(text.prompt))

    def verify(self, draft: Draft) -> Tensor:
        """Return point masses [N+1, V] on the recorded tokens, for each node the one that follows at its depth. Behind
        a node that differs from the record they are wrong, and greedy acceptance never comes there.
        """
        if self._position >= len(self._text):
            raise ValueError(f"decoded beyond the {len(self._text)} recorded tokens; see `limit`")
        recorded = torch.tensor(self._text[self._position : self._position + draft.tree.depth + 1])
        # Beyond the record nothing is committed; its last token keeps the shapes right.
        places = draft.tree.offsets.clamp_max(len(recorded) - 1)
        self._clock.advance(float(self.price.verify_s(Sizes.of(draft.tree), self._context)))
        return one_hot(recorded[places], self.vocab_size)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self._clock.advance(self.cost.overhead_s)
        self._position += len(path) + 1
        self._context += len(path) + 1

    def discard(self) -> None:
        pass  # verifying changed nothing but the time

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Return the recorded choices as logits of 1 against 0, for the recorded text or a beginning of it."""
        recorded = self.stream(prompt).generated
        places = torch.arange(len(text) + 1).clamp_max(len(recorded) - 1)
        return one_hot(torch.tensor(recorded)[places], self.vocab_size)

    def describe(self) -> dict[str, Any]:
        return {
            "streams": len(self.streams),
            "streams_left_out": sum(sum(counts.values()) for counts in self._recorded.left_out.values()),
            "sha256": self._recorded.sha256,
            "dtype": "none",
            "evaluation": self.evaluation,
            "time": "simulated",
            "cost_model": self.cost.name,
            "cost_source": self.cost.source,
        }


def load_cost(name: str) -> SimulatedCost:
    """Load the costs of a name: a YAML of `conf/cost/` without its ending; a YAML of that form; a run's output folder,
    or its `cost.json` or `calibration.json`. UsageError for no such name or file, or a wrong content.
    """
    folder = Path(config_dir(), "cost")
    shipped, path = folder / f"{name}.yaml", Path(name).expanduser()
    if shipped.is_file():
        return _from_yaml(shipped)
    if path.is_dir() or path.name in ("cost.json", "calibration.json"):
        return cost_of_run(path if path.is_dir() else path.parent)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _from_yaml(path)
    names = sorted(each.stem for each in folder.glob("*.yaml"))
    raise UsageError(
        f"Bad value target.cost={name}: no such cost model.{near_misses(name, names)} Give one of {', '.join(names)}, "
        "a YAML file of that form, or the folder of a run."
    )


def cost_of_run(folder: Path) -> SimulatedCost:
    """Derive the costs of the machine and model that a run measured, from the files in its output folder.

    t(n, context) is the fit in `cost.json`. If the run made none (measurement.cost_contexts=[]), t(n) is the straight
    line through the median times of `calibration.json`, which knows one context only. The costs of drafts are a line
    through their median times by depth; the overhead is the rest of the run's rounds beside draft and verification.
    UsageError where the folder has no calibration, or it cannot be read.
    """
    # On demand: they bring pandas, scipy and matplotlib, a second and 100 MB that most targets start without.
    from specdec.analysis.busy_machine import undisturbed
    from specdec.analysis.read.runs import open_folder

    source = f"measured by the run in {folder}"
    try:
        run = open_folder(folder)
        calibration = run.calibration()
        drafts = {int(depth): median(times) for depth, times in calibration["drafts"].items() if times}
        if run.lacks("cost.json"):
            fixed, row = line_through({int(rows): median(times) for rows, times in calibration["calls"].items()})
            calls = {"fixed_s": fixed, "row_s": row}
            source += f", at {calibration['context']} cached tokens only"
        else:
            calls = fitted_calls(run.cost())
        overhead = 0.0  # of a run that was stopped before its first round
        if not run.lacks("rounds.parquet"):
            rounds = undisturbed(run.rounds())
            overhead = max(0.0, float((rounds["round_s"] - rounds["draft_s"] - rounds["verify_s"]).mean()))
        lookup, name = median(drafts.values()) if drafts else 0.0, folder.resolve().name
        return measured_cost(calls, drafts, name=name, source=source, lookup_s=lookup, overhead_s=overhead)
    except UsageError as error:
        raise UsageError(f"Bad value target.cost: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, OSError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"Bad value target.cost: the files in {folder} are not what a run writes ({what}): give the output folder "
            "of another run."
        ) from None


def _from_yaml(path: Path) -> SimulatedCost:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"Bad value target.cost: {path} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(values, dict):
        raise UsageError(f"Bad value target.cost: {path} holds no keys.")
    return validated(SimulatedCost, values, where="cost", source=f"the cost model {path.name}")
