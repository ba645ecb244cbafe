"""One session of `specdec.advise`: calibrate, decode plain text, replay the drafter along it, predict. Drafts are
verified only where a replay calls the target, or no text tells the rounds of chains: these are decoded at the largest
gamma, and a model fitted to them predicts the others. The advice goes to files, not to a tracking run.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich import get_console
from rich.console import Console

from specdec.advice.advice import Advice, RoundCost, judge, predict, recommended
from specdec.analysis.acceptance.stretches import fit_stretches, make_trace
from specdec.analysis.account.gap_account import cost_values
from specdec.analysis.busy_machine import undisturbed
from specdec.analysis.engines.recommendation import Recommendation
from specdec.analysis.intervals import ANY, Columns, bootstrap, per_round, too_few
from specdec.analysis.read.runs import read_table
from specdec.analysis.sections import counted, in_loops
from specdec.clock import Clock, clock_for
from specdec.config import BASELINE
from specdec.disturbance import watch_of
from specdec.errors import UsageError
from specdec.folder.identity import write_config
from specdec.folder.results import ResultsFolder
from specdec.folder.rounds_table import GenerationKey, generation_line, round_table
from specdec.plan.plan import Plan
from specdec.plan.rules import check
from specdec.progress import stage
from specdec.prompts import Prompt
from specdec.records import Draft, Generation, TextStart, chain_tree
from specdec.replay.expected_rounds import Agreement, Starts, TextReplay, Walk, expected_walk
from specdec.replay.walk import TextReading
from specdec.sampling import generator_for
from specdec.session.identify import arithmetic_notes
from specdec.session.kept_answers import kept_at, key_of, keyed_by
from specdec.session.parts import Parts, loading, open_parts, prepare
from specdec.structures import Structure
from specdec.terminal import print_lines, print_links, print_table
from specdec.text.streams import Stream, read_streams
from specdec.text.writing import write_json
from specdec.timing.calls import Calibration, calibrate
from specdec.timing.threads import settle_threads
from specdec.timing.timer import Timer

_CALIBRATIONS = 8  # spread over the prompts, so that contexts and the machine's moods are averaged
FEW = 200  # rounds: fewer do not tell kinds of stretches apart

logger = logging.getLogger(__name__)


def advise(plan: Plan, text: str | None, folder: Path) -> Advice:
    """Predict every gamma of `measurement.gammas`, print and keep the advice; `text` is a file of recorded texts to
    start from, None to decode them. Raises SpecdecError: see `specdec.errors`; UsageError also for drafters and
    verifiers that cannot be replayed.
    """
    with loading(plan):
        parts = open_parts(plan)
    arm, target, decoded = parts.primary, parts.target, _is_speculated(parts)
    if not decoded or arm.structure.branches > 1 or text is not None:
        facts = {"can": arm.drafter.capabilities, "rule": arm.verifier.capabilities, "branches": arm.structure.branches}
        check("replay", plan.case(decoded=decoded, simulated=target.clock() is not None, **facts))
    recorded = prompts = None
    if text is not None:
        length = target.context_length
        recorded = read_streams(text, target.vocab_size, key="advice.text", repeats=True, context_length=length).streams
        found = {stream.prompt for stream in recorded}
        if found != {prompt.tokens for prompt in parts.prompts.prompts}:
            prompts = key_of({"recorded": sorted(found)})  # not the configured ones: no run would find their advice
    keyed = keyed_by(parts, prompts)
    write_config(folder, plan.config)
    advisor = _Advisor(parts, folder)
    advisor.measure(recorded)
    with stage("Analyse", "intervals", told=False):
        advice, recommendation = advisor.conclude(keyed, recorded, text or "baseline")
    write_json(folder / "advice.json", asdict(advice))
    try:
        write_json(kept_at(plan.advice_dir, advice.key), asdict(advice))
    except OSError as error:
        logger.warning(
            "Runs will not find this advice: it cannot be written to advice_dir=%s (%s).",
            plan.advice_dir, error.strerror,
        )  # fmt: skip
    show(advice, recommendation, get_console(), folder)
    return advice


def _is_speculated(parts: Parts) -> bool:
    """Return True where no text tells the drafter's rounds, so that they are decoded at one gamma."""
    replay = parts.primary.drafter.capabilities.replay
    return replay is None or (replay in ("copying", "calling") and not parts.target.sampling.greedy)


class _Advisor:
    """Collects what the prediction needs: baseline rounds, calibrations, one row of sums per text."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self._parts, self._seed = parts, parts.plan.seed
        self._measurement = parts.plan.measurement
        self._target, self._drafter = parts.target, parts.primary.drafter
        self._replay_kind = parts.primary.drafter.capabilities.replay
        self._shapes = {arm.gamma: arm.structure for arm in parts.chosen.arms}
        self._gammas = list(self._shapes)
        self._reading = TextReading(parts.target)
        self._clock: Clock = clock_for(self._target.device)
        self._results = ResultsFolder(folder)
        self._calibrations: list[Calibration] = []
        self._accepts: list[dict[int, float]] = []
        self._walks: list[tuple[Stream, dict[int, Walk]]] = []
        self._speculated: list[tuple[int, Generation]] | None = [] if _is_speculated(parts) else None
        self._alpha = [0.0, 0.0]  # sum of beta, positions with a proposal

    def measure(self, recorded: Sequence[Stream] | None) -> None:
        """Calibrate, decode plain text and replay along it, prompt by prompt."""
        prompts = list(self._parts.prompts.prompts)
        if recorded is not None:
            texts = [Prompt(text.id, "", "", text.prompt) for text in recorded]
            # Nothing is decoded but the longest, which says what a token of the baseline costs.
            prompts = [max(texts, key=lambda prompt: len(prompt.tokens))]
        longest = max(prompts, key=lambda prompt: len(prompt.tokens))
        asked = self._measurement.threads is not None
        settle_threads(self._target, longest.tokens, watch_of(self._target.device), asked)
        prepare(self._parts, longest)
        if self._measurement.warmup_tokens:
            self._decode(longest, 0, self._measurement.warmup_tokens)
        every = -(-len(prompts) // _CALIBRATIONS)
        longest_arm = max(self._parts.chosen.arms, key=lambda arm: arm.gamma)
        what = counted(len(prompts), "prompt") if recorded is None else counted(len(recorded), "recorded text")
        about = f"{what} plainly, and drafts along them at {counted(len(self._gammas), 'gamma')}"
        shorter = "prompts.limit=N, measurement.max_new_tokens=N and measurement.gammas=[N] make it shorter"
        with stage("Decode", about, len(prompts) + len(recorded or ()), shorter=shorter) as under_way:
            for index, prompt in enumerate(prompts):
                if index % every == 0:
                    self._calibrate(prompt)
                for text in self._baseline(prompt):
                    if self._speculated is not None:  # again with the drafter; its text may be another
                        again = Prompt(text.id, text.category, "", text.prompt)
                        request = longest_arm.request(again, self._parts.limit, self._seed, text.repeat)
                        self._speculated.append((index, longest_arm.decode(request, self._clock)))
                        self._walks.append((replace(text, generated=self._speculated[-1][1].tokens), {}))
                        self._drafter.remember(text.prompt, text.generated)
                    elif recorded is None:
                        self._replay(text)
                under_way.advance()
            self._calibrate(prompts[-1])
            for text in recorded or ():
                self._replay(text)
                under_way.advance()

    def _baseline(self, prompt: Prompt) -> Iterator[Stream]:
        """Decode a prompt, its later turns and its repeats without a drafter, exactly as a run does it."""
        for repeat in range(self._measurement.repeats):
            answers: dict[str, tuple[int, ...]] = {}
            for turn in self._parts.prompts.turns(prompt, answers):
                done = self._decode(turn, repeat, self._parts.limit)
                self._clock.synchronize()
                key = GenerationKey("advise", BASELINE, 0, repeat, turn.id, turn.category)
                line = generation_line(key, done, self._clock, *self._parts.read(done.tokens))
                self._results.append([round_table(key, done, self._clock)], [line])
                yield Stream(turn.id, turn.category, turn.tokens, done.tokens, repeat=repeat)
                answers[turn.id] = done.tokens

    def _decode(self, prompt: Prompt, repeat: int, limit: int) -> Generation:
        arm = self._parts.baseline  # with a run's own generators, so that sampled texts are its texts
        return arm.decode(arm.request(prompt, limit, self._seed, repeat), self._clock)

    @torch.inference_mode()
    def _calibrate(self, prompt: Prompt) -> None:
        """Time calls and drafts in a prompt's context, and the verifier's decisions on drafts of random tokens."""
        target, arm, repeats = self._target, self._parts.primary, self._measurement.calibration_calls
        timer = Timer(self._clock, repeats, generator_for(self._seed, prompt.id, "calibration"))
        trees = [shape.tree for shape in self._shapes.values()]
        calls = calibrate(target, self._drafter, arm.structure, prompt.tokens, trees, timer, self._gammas)
        self._calibrations.append(calls)
        generator = generator_for(self._seed, prompt.id, "calibration/accept", target.device)
        room = max(map(target.room, (chain_tree(0), *trees)))
        branches = max(shape.branches for shape in self._shapes.values())
        target.start(TextStart(prompt.tokens, len(prompt.tokens) + room, branches))
        drafts = {}
        for size, tree in {len(tree): tree for tree in (chain_tree(0), *trees)}.items():
            draft = Draft(torch.randint(target.vocab_size, (size,), generator=generator, device=target.device), tree)
            drafts[size] = draft, target.verify(draft)
            target.discard()
        timer = Timer(self._clock, repeats, generator)
        for _ in timer.passes(warm_up=2, name="Calibrate: accepting"):
            for size, (draft, p) in drafts.items():
                timer.time(size, partial(arm.verifier.accept, draft, p, generator))
        self._accepts.append({size: median(timer.seconds(size)) for size in drafts})

    def _replay(self, text: Stream) -> None:
        """Count the rounds that this text takes at every gamma."""
        tokens = text.generated
        limit = max(self._parts.limit, len(tokens))

        def replay(shape: Structure) -> TextReplay:
            prompt = Prompt(text.id, text.category, "", text.prompt)
            request = self._parts.primary.request(prompt, limit, self._seed, text.repeat, tokens)
            return TextReplay(self._drafter, self._target, shape, tokens, request, self._reading)

        along: Agreement | None = None
        if self._replay_kind != "calling":
            along = replay(self._parts.primary.structure).agreement()
            self._alpha[0] += float(along.beta.sum())
            self._alpha[1] += int(along.proposed.sum())
        walks = {}
        for gamma, shape in self._shapes.items():
            if along is not None and self._replay_kind == "position" and shape.branches == 1:
                walks[gamma] = expected_walk(Starts.of_positions(along, gamma), limit)
            elif self._target.sampling.greedy:
                walks[gamma] = replay(shape).rounds(self._clock)
            else:
                walks[gamma] = expected_walk(replay(shape).starts(), limit)
        self._walks.append((text, walks))
        self._drafter.remember(text.prompt, tokens)

    def conclude(
        self, keyed: dict[str, Any], recorded: Sequence[Stream] | None, source: str
    ) -> tuple[Advice, Recommendation]:
        """Turn what was measured into advice; `source` is the file of recorded texts, or "baseline"."""
        if self._speculated is not None:
            predicted = predicted_walks(self._speculated, self._gammas)
            self._walks = [(text, walks) for (text, _), walks in zip(self._walks, predicted, strict=True)]
        self._results.compact()
        self._results.finish()
        rounds = undisturbed(read_table(self._results.folder / "rounds.parquet"))
        t1_s, costs = float(rounds["verify_s"].mean()), self._costs()
        calibrations = [item.as_dict() for item in self._calibrations]
        told = {"calibrations": calibrations, "accept_s": self._accepts, "over_t1": costs}
        self._results.write_json("calibration.json", told)
        base = rounds.groupby("prompt")[["committed", "verify_s", "round_s"]].sum()
        per_token = base.sum() / base["committed"].sum()
        predictions = []
        for gamma in self._gammas:
            table = self._table(gamma, costs, t1_s)
            if recorded is None:
                table = table.join(base)
            else:  # timed on one text: the others are taken to cost the same per token
                table = table.assign(**{name: table["tokens"] * per for name, per in per_token.items()})
            ranges = {"tokens_per_round": per_round(gamma), "o": ANY}  # accepting may take less than nothing does
            intervals = bootstrap(table, _statistic, self._measurement.bootstrap, self._seed, ranges=ranges)
            value = {name: interval.estimate for name, interval in intervals.items()}
            full_verify = _interpolated(costs["verify"], self._shapes[gamma].nodes)
            cost = RoundCost(value["g"], value["v"], value["o"], full_verify, value["baseline"])
            offered = defaultdict[int, float](float)
            for _, walks in self._walks:
                for size, count in walks[gamma].offered.items():
                    offered[size] += count
            tau, speedup, chain = intervals["tokens_per_round"], intervals["speedup"], self._shapes[gamma].branches == 1
            predictions.append(predict(gamma, tau, speedup, cost, offered, chain))
        best, blame, verdict = judge(predictions, self._parts.chosen.label)
        loops: dict[str, bool] = {}  # by prompt, whether a text of it falls into a loop
        for text, _ in self._walks:
            loops[text.id] = loops.get(text.id, False) or self._parts.read(text.generated)[1]
        if any(loops.values()):
            verdict = f"{in_loops(fmean(loops.values()))}; {verdict[:1].lower()}{verdict[1:]}"
        notes = [*arithmetic_notes(self._parts)]
        if best.gamma == max(self._gammas) and len(self._gammas) > 1 and best.speedup.estimate > 1:
            notes.append("The best gamma is the largest of measurement.gammas: a longer one may be better still.")
        calls = sum(walk.calls for _, walks in self._walks for walk in walks.values())
        if calls:
            notes.append(
                f"This drafter's rounds follow from the target's calls on its drafts alone, so the replay took {calls} "
                "calls of the target, as many as decoding at every gamma takes."
            )
        if self._speculated is not None:
            notes.append(
                f"No text tells this drafter's rounds, so they were decoded at gamma {max(self._gammas)}; tokens per "
                "round at the other gammas are those of a model of stretches of the text, fitted to these rounds."
            )
        if few := too_few(len(loops)):
            notes.append(f"No intervals: {few}.")
        if recorded is not None and keyed["prompts"] != self._parts.prompts.content_hash:
            notes.append("The recorded prompts are not those of the configuration: no run will find this advice.")
        texts, times = [text for text, _ in self._walks], {size + 1: ratio for size, ratio in costs["verify"].items()}
        lengths = fmean(len(text.prompt) for text in texts), fmean(len(text.generated) for text in texts)
        recommendation = recommended(self._parts, predictions, times, *lengths)
        advice = Advice(
            key=key_of(keyed),
            keyed=keyed,
            label=self._parts.chosen.label,
            replay=str(self._replay_kind) if self._speculated is None else "speculation",
            source=source,
            prompts=len(loops),
            tokens=sum(len(text.generated) for text in texts),
            alpha=self._alpha[0] / self._alpha[1] if self._alpha[1] else None,
            t1_ms=1e3 * t1_s,
            best_gamma=best.gamma,
            blame=blame,
            verdict=verdict,
            predictions=predictions,
            notes=notes,
            serving=asdict(recommendation),
        )
        return advice, recommendation

    def _costs(self) -> dict[str, dict[int, float]]:
        """Return costs by nodes offered, over t(1) of the same calibration, so that the machine's speed changes none:
        `verify`, t(offered + 1); `draft`, of a whole draft; `accept`, less the baseline's.
        """
        calibrations, pairs = self._calibrations, list(zip(self._calibrations, self._accepts, strict=True))
        verify = {n - 1: fmean(c.t(n) / c.t(1) for c in calibrations) for n in calibrations[0].calls}
        draft = {0: 0.0}
        for gamma, shape in self._shapes.items():
            if ratios := [median(c.drafts[gamma]) / c.t(1) for c in calibrations if c.drafts[gamma]]:
                draft[shape.nodes] = fmean(ratios)
        accept = {n: fmean((a[n] - a[0]) / c.t(1) for c, a in pairs) for n in self._accepts[0]}
        return {"verify": verify, "draft": draft, "accept": accept}

    def _table(self, gamma: int, costs: Mapping[str, dict[int, float]], t1_s: float) -> pd.DataFrame:
        """Return sums per prompt (index): tokens, rounds, and the costs of all its rounds over t1."""
        rows = []
        for text, walks in self._walks:
            walk = walks[gamma]
            sums = {
                name: sum(count * _interpolated(table, size) for size, count in walk.offered.items())
                for name, table in costs.items()
            }
            if walk.draft_s is not None:
                sums["draft"] = walk.draft_s / t1_s
            sums["commit"] = (walk.commit_s or 0.0) / t1_s
            rows.append({"prompt": text.id, "tokens": len(text.generated), "rounds": walk.rounds, **sums})
        return pd.DataFrame(rows).groupby("prompt").sum()


def _interpolated(costs: Mapping[int, float], offered: int) -> float:
    """Return the cost of a number of nodes offered; sizes in between are interpolated."""
    sizes = sorted(costs)
    return float(np.interp(offered, sizes, [costs[size] for size in sizes]))


def predicted_walks(texts: Sequence[tuple[int, Generation]], gammas: Sequence[int]) -> list[dict[int, Walk]]:
    """Return the walk of each text at each gamma, by the model of stretches fitted to their rounds (theory.md 5.7). A
    prompt that took more rounds at the largest gamma than the model expects takes as many times more at every gamma, so
    that prompts differ as in decoding. Raises UsageError: too few rounds for a fit.
    """
    longest = max(gammas)
    lines = []
    for number, (prompt, text) in enumerate(texts):
        left = len(text.tokens)
        for item in text.rounds:
            room = min(max(left - 1, 0), longest)
            lines.append((number, prompt, item.tree.depth, item.accepted, item.rejected, room, len(item.committed)))
            left -= len(item.committed)
    if len(lines) < FEW:
        raise UsageError(
            f"Only {len(lines)} rounds were decoded, and a prediction of other gammas needs {FEW}: raise prompts.limit "
            "or measurement.max_new_tokens."
        )
    names = ("text", "prompt", "offered", "accepted", "rejected", "room", "committed")
    table = dict(zip(names, np.array(lines, dtype=np.int64).T, strict=True))
    offers = bool((table["offered"] < table["room"]).any())
    prompts = [prompt for prompt, _ in texts]
    fit = fit_stretches(longest, offers, make_trace(table, max(prompts) + 1))
    lengths = np.array([len(text.tokens) for _, text in texts])
    rounds = {gamma: fit.rounds_of(gamma, lengths)[0] for gamma in gammas}
    taken = np.bincount(table["prompt"]) / np.bincount(prompts, rounds[longest])
    walks: list[dict[int, Walk]] = [{} for _ in texts]
    for gamma in gammas:
        shares = {size: share for size, share in enumerate(fit.offered(gamma, lengths)) if share > 0}
        for walk, expected in zip(walks, rounds[gamma] * taken[prompts], strict=True):
            walk[gamma] = Walk({size: float(expected * share) for size, share in shares.items()}, draft_s=None)
    return walks


def _statistic(sums: Columns) -> dict[str, np.ndarray]:
    """Return the quantities of the gap account from sums over prompts, times over t1: `baseline` is t_AR."""
    t1 = sums["verify_s"] / sums["committed"]
    plain = sums["round_s"] / t1
    # A round takes beside draft and verification: the baseline's own rest, accepting more than nothing, and what the
    # drafter takes to note what was committed.
    rest = sums["rounds"] * (plain / sums["committed"] - 1) + sums["accept"] + sums["commit"]
    times = {"draft_s": sums["draft"], "verify_s": sums["verify"], "round_s": sums["draft"] + sums["verify"] + rest}
    done = {"rounds": sums["rounds"], "tokens": sums["tokens"]}
    values = cost_values({**done, **times, "baseline_round_s": plain, "baseline_tokens": sums["committed"]}, 1.0)
    return {"tokens_per_round": sums["tokens"] / sums["rounds"], "baseline": values.pop("t_ar_s"), **values}


def show(advice: Advice, recommendation: Recommendation, console: Console, folder: Path) -> None:
    """Print the table, the verdict, the notes, where the advice is, and how to serve the drafter."""
    alpha = "" if advice.alpha is None else f"alpha {advice.alpha:.3f}; "
    lines = [
        [
            f"{item.gamma}{'*' if item.gamma == advice.best_gamma else ''}",
            f"{item.tokens_per_round:.2f}",
            f"{item.speedup:.2f}",
            *(f"{value:.3f}" for value in (item.cost.draft, item.cost.verify, item.cost.overhead)),
            f"{item.pays_from_tokens:.2f}",
            *("-" if value is None else f"{value:.3f}" for value in (item.pays_from_alpha, item.pays_below_c)),
        ]
        for item in advice.predictions
    ]
    print_table(
        console,
        [["gamma", "tokens/round", "speedup", "g", "v", "o", "from", "alpha", "c"], *lines],
        title=f"Predicted for {advice.label}, {advice.prompts} prompts, {advice.tokens} tokens of plain text",
        caption=f"{alpha}g, v, o: draft, verification and overhead of a round in calls of t1 = {advice.t1_ms:.2f} ms; "
        "it pays from these tokens per round, from this alpha, up to this cost c of a drafter step; "
        "95% prompt-bootstrap intervals; * fastest",
    )
    print_lines(console, advice.verdict, *advice.notes)
    print_links(console, {"results": str(folder)})
    for line in recommendation.lines(said=True):
        console.print(line, markup=False, highlight=False, soft_wrap=True)  # a command is one line to paste
