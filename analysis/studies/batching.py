"""Study `batching`: up to which batch speculation pays, what eats the speedup there, and whether the cost model of
single calls could have said so (theory.md 7.3).
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from specdec.theory.capped_geometric import batch_speedup, longest_of_batch

from ..comparisons import StrategyComparison, compare, curves_of, interval, intervals, metrics_of, printed
from ..cost.break_even import batch_in_words, few_units_interval, interval_in_words, stops_paying
from ..engines.vllm_flags import DRAFTS, ENGINE, batch_schedule
from ..figures import pictures, style
from ..intervals import FEWEST
from ..sections import About, Findings, FinishedStudy, Section, Tables, counted, register

RESULT = Path(__file__).parents[1] / "results" / "batching.json"
BEST = 0  # in place of a gamma: the best at each batch
KEYS = ["drafter", "gamma", "batch"]
PREDICTIONS = {"formula": "timed calls on batches", "model": "cost model of single calls"}
_SUMS = ["tokens", "steps", "rounds", "seconds", "draft_s", "verify_s", "places", "baseline_tokens", "baseline_steps",
         "baseline_seconds"]  # fmt: skip
_COSTS = {"draft": "draft", "verify": "verify", "rest": "accept, commit, rest"}
_HATCHES = {"draft": (style.YELLOW, "//"), "verify": (style.SKY, ""), "rest": (style.LIGHT, "--")}


@register("batching")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables. Metrics `batching/<drafter>.break_even`: 0 where no batch pays, absent where all tried do."""
    found = BatchNumbers(tables, about.replicates, about.seed)
    answer, calls = _answer(found, tables, about), _calls(found, tables, about)
    sections = (answer, _costs(found, about), _throughput(found, about), calls)
    lines = found.cells.assign(label=[f"gamma{gamma}" if gamma else "best" for gamma in found.cells["gamma"]])
    best, ends = lines[lines["gamma"] == BEST], found.ends
    metrics = {"batching/repeats": float(found.repeats), "batching/largest": float(found.largest)}
    metrics |= metrics_of(ends[ends["gamma"] == BEST], "batching/{drafter}.{what}", {"break_even": "break_even"})
    metrics |= metrics_of(ends[ends["gamma"] != BEST], "batching/{drafter}.break_even.gamma{gamma}", {"": "break_even"})
    predicted = {name: name for name in PREDICTIONS}
    metrics |= metrics_of(ends[ends["gamma"] == BEST], "batching/{drafter}.break_even.{what}", predicted, bounds=False)
    metrics |= metrics_of(best, "batching/{drafter}.speedup.{batch}", {"": "speedup"})
    speedups = {"": "speedup", **{f".{name}": name for name in PREDICTIONS}}
    curves = curves_of(lines, "curve/batching/speedup.{drafter}.{label}{what}", ["drafter", "label"], "batch", speedups)
    rates = {"best": "rate", "plain": "plain_rate"}
    curves |= curves_of(best, "curve/batching/tokens_per_s.{drafter}.{what}", ["drafter"], "batch", rates)
    refuted = ""
    if differs := int(tables["batching"]["differs"].sum()):
        refuted = (
            f"Outputs refuted: {counted(differs, 'text')} with drafts part from plain decoding without a near-tie that "
            "rounding could explain."
        )
    return Findings(sections, metrics, curves, refuted)


class BatchNumbers:
    """The study in numbers. Intervals draw whole repeats: sequences of one batch share the time of every step, so that
    texts of one repeat are not independent; repeats have prompts of their own and are.

    Attributes:
        drafters, batches, largest: names, in the order of the study; sizes, ascending; the largest of them.
        cells: a line for each drafter, gamma and batch, with _low and _high: speedup (plain seconds per token over
            speculative ones at the same batch), rate and plain_rate (tokens per second over all sequences), tokens (per
            round and sequence). And without: draft, verify and rest of a round in plain steps of the same batch (tokens
            over their sum is the speedup), width (tokens per sequence of a call), and the speedup that the formula
            gives by each of `PREDICTIONS`. Lines of gamma BEST are those of the best gamma, chosen for every repeat on
            the other repeats, with the chosen ones in `gammas`, such as "4" or "2, 4"; their predictions are the
            largest of all gammas.
        ends: a line for each drafter and gamma with the batch behind which it does not pay (`stops_paying`): measured
            (break_even, with its interval) and by each of `PREDICTIONS`.
        repeats: what intervals rest on.
        gain: plain tokens per second at the largest batch over those at the smallest.
    """

    def __init__(self, tables: Tables, replicates: int, seed: int) -> None:
        lines = tables["batching"].rename(columns={"repeat": "prompt"})
        lines = lines.sort_values(["prompt", *KEYS], ignore_index=True)
        # The best gamma is chosen for every repeat by the speedup over all other repeats, so that the best of many is
        # not flattered by its luck; a single repeat chooses for itself.
        chosen_by = ["drafter", "batch", "prompt", "gamma"]
        judged = own = lines.groupby(chosen_by)[["tokens", "seconds", "baseline_tokens", "baseline_seconds"]].sum()
        if lines["prompt"].nunique() > 1:
            judged = own.groupby(["drafter", "batch", "gamma"]).transform("sum") - own
        by_others = judged["baseline_seconds"] / judged["baseline_tokens"] * judged["tokens"] / judged["seconds"]
        chosen = by_others.groupby(["drafter", "batch", "prompt"]).idxmax()
        best = lines[pd.MultiIndex.from_frame(lines[chosen_by]).isin(list(chosen))]
        compared = compare(pd.concat([lines, best.assign(gamma=BEST)]), KEYS, _SUMS, replicates, seed)
        keys, ratio = compared.cells, compared.ratio
        spread = partial(few_units_interval, units=compared.prompts)
        speedup = ratio("baseline_seconds", "baseline_tokens") / ratio("seconds", "tokens")
        plain_rate = ratio("baseline_tokens", "baseline_seconds")
        statistics = {"speedup": speedup, "rate": ratio("tokens", "seconds"), "plain_rate": plain_rate}
        statistics |= {"tokens": ratio("tokens", "rounds")}
        cells = compared.table(statistics, interval=lambda values, _: spread(values))
        plain_step = ratio("baseline_seconds", "baseline_steps")[0]
        for name in ("draft", "verify"):
            cells[name] = ratio(f"{name}_s", "steps")[0] / plain_step
        cells["rest"] = ratio("seconds", "steps")[0] / plain_step - cells["draft"] - cells["verify"]
        cells["width"] = ratio("places", "rounds")[0]
        gammas = best.groupby(["drafter", "batch"])["gamma"].agg(lambda found: ", ".join(map(str, sorted(set(found)))))
        cells = cells.join(gammas.rename("gammas"), on=["drafter", "batch"])
        sources = {"formula": "seconds", "model": "model_s"}  # prediction -> where it has the seconds of calls
        predicted = {name: _predicted(compared, tables, column) for name, column in sources.items()}
        self.cells = cells.assign(**{name: each[0] for name, each in predicted.items()})
        self.batches, ends = sorted(int(batch) for batch in keys["batch"].unique()), []
        for (drafter, gamma), at in keys.groupby(["drafter", "gamma"]).groups.items():
            line = {"drafter": drafter, "gamma": gamma}
            line |= spread(stops_paying(self.batches, speedup[:, at])).as_columns("break_even")
            ends.append(line | {name: stops_paying(self.batches, each[:1, at])[0] for name, each in predicted.items()})
        self.ends, self.repeats, self.largest = pd.DataFrame(ends), compared.prompts, self.batches[-1]
        self.drafters = [str(name) for name in tables["batching"]["drafter"].unique()]
        places = [compared.place(self.drafters[0], BEST, batch) for batch in (self.largest, self.batches[0])]
        self.gain = spread(plain_rate[:, places[0]] / plain_rate[:, places[1]])

    def of(self, drafter: str, gamma: int = BEST) -> pd.DataFrame:
        """Return the lines of `cells` of a drafter and gamma by ascending batch."""
        return self.cells[(self.cells["drafter"] == drafter) & (self.cells["gamma"] == gamma)]

    def gammas_of(self, drafter: str) -> list[int]:
        """Return the gammas that a drafter was tried with; heads draft no deeper than there are of them."""
        return sorted(set(self.cells.loc[self.cells["drafter"] == drafter, "gamma"]) - {BEST})

    def end(self, drafter: str, gamma: int = BEST) -> pd.Series:
        return self.ends[(self.ends["drafter"] == drafter) & (self.ends["gamma"] == gamma)].iloc[0]


def _predicted(compared: StrategyComparison, tables: Tables, column: str) -> np.ndarray:
    """Return E / (v + gamma c) of all cells, [1 + R, C]: E is that of the drafter and gamma at all batches together, v
    the mean of t(B (k + 1)) / t(B) over the longest of B drafts, gamma c a timed draft for the batch over t(B), where t
    is `column` of `calls`.
    """
    keys, values = compared.cells, compared.values
    found = np.full(values["rounds"].shape, np.nan)
    timed = tables["calls"].groupby(["batch", "tokens"])[column].median()
    drafts = tables["drafts"].groupby(["drafter", "gamma", "batch"])["seconds"].median()
    for (drafter, gamma), alike in keys[keys["gamma"] != BEST].groupby(["drafter", "gamma"]).groups.items():
        tokens = values["tokens"][:, alike].sum(axis=1) / values["rounds"][:, alike].sum(axis=1)
        mine = tables["offers"].query("drafter == @drafter and gamma == @gamma")
        counts = np.bincount(mine["offered"], weights=mine["rounds"], minlength=gamma + 1)
        for place in alike:
            batch = int(keys["batch"][place])
            if timed[batch].isna().any() or (drafter, gamma, batch) not in drafts:
                continue
            widths = longest_of_batch(counts / counts.sum(), batch)
            seconds = np.interp(np.arange(len(widths)) + 1, timed[batch].index, timed[batch].to_numpy())
            plain = float(seconds[0])
            draft, verify = drafts[drafter, gamma, batch] / plain, float(widths @ seconds) / plain
            found[:, place] = batch_speedup(tokens, 1, draft, verify)
    for place in keys.index[keys["gamma"] == BEST]:
        same = (keys["drafter"] == keys["drafter"][place]) & (keys["batch"] == keys["batch"][place])
        found[:, place] = np.max(found[:, same & (keys["gamma"] != BEST)], axis=1)
    return found


def committed_study(path: Path = RESULT) -> FinishedStudy:
    """Return the study that comes with specdec: its tables, and `study`, the values of `About`."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in kept["study"].items() if key != "study"}
    tables = {name: pd.DataFrame(columns) for name, columns in kept["tables"].items()}
    tables["calls"] = tables["calls"].astype({"model_s": float})
    return FinishedStudy("batching", tables, About(**facts), str(path))


def committed_in_words(path: Path = RESULT) -> str:
    """Say where and when the committed study was made."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    load = kept["load_average"]
    return (
        f"Committed: `{kept['command']}` on {kept['date']}, {kept['cpu']['model']}, {kept['clock']}, load average "
        f"{load['start'][0]} before and {load['end'][0]} after."
    )


def _answer(found: BatchNumbers, tables: Tables, about: About) -> Section:
    lines, facts, largest = tables["batching"], tables["cost"].iloc[0], found.largest
    measured = {drafter: interval(found.end(drafter), "break_even") for drafter in found.drafters}
    said = "; ".join(f"{drafter} {interval_in_words(value, largest)}" for drafter, value in measured.items())
    modelled = []
    for drafter, value in measured.items():
        predicted = found.end(drafter)["model"]
        words = f"{drafter} {batch_in_words(predicted, largest)}"
        if not np.isnan(value.low):
            words += " (within the interval)" if value.low <= predicted <= value.high else " (outside the interval)"
        modelled.append(words)
    model = f"The cost model fitted to calls on a single sequence predicted {'; '.join(modelled)}."
    if any(np.isnan(found.end(drafter)["model"]) for drafter in measured):
        model = "There is no cost model of single calls to compare with."
    unit = f"{found.repeats} repeats are too few for intervals, which need {FEWEST}."
    if found.repeats == 1:
        unit = "A single repeat: no intervals, and the best gamma is chosen on the numbers that it is judged by."
    elif found.repeats >= FEWEST:
        unit = (
            f"Intervals draw whole repeats again ({found.repeats}): sequences of one batch share the time of every "
            "step, so that neither texts nor rounds of a repeat are independent, and repeats have prompts of their "
            "own. They are widened for so few units (expanded percentiles)."
        )
        if found.repeats * facts["largest"] > facts["prompts"]:
            unit += (
                f" There are {counted(int(facts['prompts']), 'prompt')}, and a repeat takes {int(facts['largest'])} at "
                "the largest batch: some stand in several repeats, so that intervals are too short."
            )
    same, near, differs = (int(lines[name].sum()) for name in ("same", "near_tie", "differs"))
    text = (
        f"Speculation pays up to this batch, with the best gamma at each: {said}. {model}",
        "Speedup at equal batch: seconds per token of plain decoding over seconds per token with drafts, both over as "
        "many sequences at once, in steps with every slot in use, prefill apart. The batch at which it falls below 1 "
        "for the last time is interpolated over log2 of the batch. The best gamma is chosen for every repeat on the "
        "other repeats.",
        unit,
        f"Of {counted(same + near + differs, 'text')} with drafts, {same:,} are those of plain decoding at the batch; "
        f"{near:,} part from it at a near-tie, {differs:,} otherwise.",
        *([] if differs else _schedules(found, about)),
        *about.caveats(tables["skipped"]),
    )
    ends = []
    for drafter in found.drafters:
        for gamma in (*found.gammas_of(drafter), BEST):
            end = found.end(drafter, gamma)
            line = {"drafter": drafter, "gamma": str(gamma) if gamma else "best"}
            line["measured"] = interval_in_words(interval(end, "break_even"), largest)
            for name, label in PREDICTIONS.items():
                line[f"predicted from {label}"] = batch_in_words(end[name], largest)
            ends.append(line)
    shown = (
        ("Batch behind which speculation does not pay: measured (95%), and as predicted", pd.DataFrame(ends)),
        ("Speedup at equal batch with the best gamma (95%), and the gammas chosen", best_table(found)),
    )
    return Section("Up to which batch speculation pays", text, shown, (("batching_speedup", _speedups(found, about)),))


def _schedules(found: BatchNumbers, about: About) -> list[str]:
    """Return the gamma to serve at each batch as vLLM takes it: the fastest whose interval is above 1, else none."""
    words = []
    for drafter in found.drafters:
        tried = found.cells.query("drafter == @drafter and gamma != @BEST")
        paying = tried[tried["speedup_low"] > 1].sort_values("speedup").groupby("batch")["gamma"].last()
        best = {batch: int(paying.get(batch, 0)) for batch in found.batches}
        if drafter in DRAFTS and any(best.values()):
            words.append(f'{drafter} `"num_speculative_tokens_per_batch_size": {batch_schedule(best)}`')
    if not words:
        return []
    pocket = " and demonstrates the tool, as all figures of pocket models do" * ("pocket" in about.title)
    return [
        f"To serve it by load, a key of `--speculative-config` in the format of {ENGINE}: [first batch, last batch, "
        f"draft tokens], none where no gamma is surely faster than plain decoding. It is a starting point, not "
        f"measured there{pocket}. {'; '.join(words)}."
    ]


def best_table(found: BatchNumbers) -> pd.DataFrame:
    """Return speedups with the best gamma by batch, and the gammas that were chosen."""
    shown = {"batch": [str(batch) for batch in found.batches]}
    for drafter in found.drafters:
        lines = found.of(drafter)
        shown |= {drafter: printed(lines, "speedup", ".2f"), f"gamma of {drafter}": lines["gammas"].tolist()}
    return pd.DataFrame(shown)


@style.in_style
def _costs(found: BatchNumbers, about: About) -> Section:
    """Write the section on the factors, each drafter at the gamma that is fastest at the smallest batch."""
    first, last = found.batches[0], found.largest
    chosen, tables, sentences = {}, [], []
    for drafter in found.drafters:
        gammas = found.gammas_of(drafter)
        chosen[drafter] = gamma = max(gammas, key=lambda gamma: float(found.of(drafter, gamma)["speedup"].iloc[0]))
        lines = found.of(drafter, gamma)
        low, high = lines.iloc[0], lines.iloc[-1]
        rises = {label: high[name] - low[name] for name, label in _COSTS.items()}
        falls = max(rises.values()) <= 0
        most = max(rises, key=lambda label: abs(rises[label]) if falls else rises[label])
        sentences.append(
            f"{drafter} at gamma {gamma}: from batch {first} to {last} a round goes from {low[[*_COSTS]].sum():.2f} to "
            f"{high[[*_COSTS]].sum():.2f} plain steps "
            f"({'; '.join(f'{label} {rise:+.2f}' for label, rise in rises.items())}), for {low['tokens']:.2f} and "
            f"{high['tokens']:.2f} tokens: {most} "
            + ("eats most of the speedup." if rises[most] > 0 else "is what changes most.")
        )
        labels = {"tokens": "tokens per round", **_COSTS, "width": "tokens per call and sequence"}
        shown = {label: lines[name].map("{:.2f}".format) for name, label in labels.items()}
        shown["speedup"] = printed(lines, "speedup", ".2f")
        shown |= {f"predicted from {label}": printed(lines, name, ".2f") for name, label in PREDICTIONS.items()}
        tables.append(pd.DataFrame({"drafter": drafter, "gamma": gamma, "batch": lines["batch"], **shown}))
    words = (
        "Tokens per round and sequence, and the parts of a round in plain steps; tokens per sequence of a call, "
        "padding included; speedup as measured, and as predicted from the tokens per round and the times of calls"
    )
    title = f"A round in plain steps of the same batch\n{about.title}"
    caption = (
        "Bars: what a round of all sequences takes, in steps of plain decoding of as many; line: tokens per round and "
        "sequence. Speculation pays where the line is above the bar."
    )
    rows = len(chosen)
    figure, panels = style.new_panels(title, caption, 1.2 + 2.4 * rows, rows, sharex=True)
    at = np.arange(len(found.batches))
    for axes, (drafter, gamma) in zip(panels[:, 0], chosen.items(), strict=True):
        lines, below = found.of(drafter, gamma), np.zeros(len(at))
        for name, label in _COSTS.items():
            colour, hatch = _HATCHES[name]
            height = lines[name].to_numpy()
            axes.bar(at, height, 0.7, below, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
            below = below + height
        black = style.look(0)._replace(colour=style.BLACK)
        pictures.line(axes, at.astype(float).tolist(), intervals(lines, "tokens"), black, "tokens per round")
        axes.set_xticks(at, [str(batch) for batch in found.batches])
        axes.set_ylabel(f"{drafter}, gamma {gamma}")
    style.legend_above(panels[0, 0], 4)
    panels[-1, 0].set_xlabel("sequences in the batch")
    shown_tables = ((words, pd.concat(tables, ignore_index=True)),)
    return Section("What eats the speedup", tuple(sentences), shown_tables, (("batching_costs", figure),))


def _throughput(found: BatchNumbers, about: About) -> Section:
    # Every cell of a repeat stands beside the same plain decoding, so that the first drafter's is that of all.
    rates = {"plain": (found.of(found.drafters[0]), "plain_rate")}
    rates |= {drafter: (found.of(drafter), "rate") for drafter in found.drafters}
    shown = {name: printed(lines, column, ".0f") for name, (lines, column) in rates.items()}
    text = (
        f"Plain decoding writes {shown['plain'][0]} tokens per second at batch {found.batches[0]} and "
        f"{shown['plain'][-1]} at batch {found.largest}, {found.gain:.2f} times as many: batching is the other way to "
        "fill a call, and the two spend the same spare arithmetic.",
    )
    with style.styled():
        figure, axes = style.new_figure(
            f"Tokens per second over all sequences\n{about.title}",
            f"Each drafter with its best gamma at each batch; 95% intervals over {counted(found.repeats, 'repeat')}. "
            "Prefill is apart.",
        )
        for place, (name, (lines, column)) in enumerate(rates.items()):
            look = style.look(place - 1) if place else style.Look(style.BLACK, "s", ":")
            label = name if place else "plain decoding"
            pictures.line(axes, found.batches, intervals(lines, column), look, label)
        pictures.log_axis(axes, found.batches, "sequences in the batch")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.set_ylabel("tokens per second, all sequences")
        style.legend_above(axes, 2)
    table = pd.DataFrame({"batch": [str(batch) for batch in found.batches], **shown})
    caption = "Tokens per second over all sequences (95%), drafters with their best gamma"
    return Section("Throughput", text, ((caption, table),), (("batching_throughput", figure),))


def _calls(found: BatchNumbers, tables: Tables, about: About) -> Section:
    cost = tables["cost"].iloc[0]
    calls = tables["calls"].groupby(["batch", "tokens"])[["seconds", "model_s"]].median().reset_index()
    plain = calls[calls["tokens"] == 1].set_index("batch")
    for name, column in (("ratio", "seconds"), ("model_ratio", "model_s")):  # over the call on one token per sequence
        calls[name] = calls[column] / calls["batch"].map(plain[column])
    wide = calls[calls["tokens"] > 1]
    ratios = wide.pivot(index="batch", columns="tokens", values="ratio")
    most, first, last = int(wide["tokens"].max()), found.batches[0], found.largest
    text = [
        f"A call on {most} tokens per sequence takes {ratios.loc[first, most]:.2f} times a plain step at batch {first} "
        f"and {ratios.loc[last, most]:.2f} times at batch {last}, of at most {most}."
    ]
    if calls["model_s"].notna().all():
        off = (calls["model_s"] / calls["seconds"] - 1).abs()
        ratio_off = (wide["model_ratio"] / wide["ratio"] - 1).abs()
        text.append(
            f"The cost model was fitted to calls on one sequence (up to {int(cost['rows'])} tokens, "
            f"{cost['error']:.1%} off on sizes that it had not seen) and never saw a batch: over all batches it is "
            f"{off.median():.0%} off in seconds (worst {off.max():.0%}) and {ratio_off.median():.0%} "
            f"in t(B (gamma + 1)) / t(B) (worst {ratio_off.max():.0%})."
        )
    models = ["" if np.isnan(ratio) else f" ({ratio:.2f})" for ratio in wide["model_ratio"]]
    shown = wide.assign(
        shown=wide["ratio"].map("{:.2f}".format) + models, tokens=wide["tokens"].map("{} tokens each".format)
    )
    table = shown.pivot(index="batch", columns="tokens", values="shown")[shown["tokens"].unique()]
    table.insert(0, "t(B), ms", (1e3 * plain["seconds"]).map("{:.3g}".format))
    table = table.rename_axis(columns=None).reset_index().astype({"batch": str})
    with style.styled():
        figure, axes = style.new_figure(
            f"A call on gamma + 1 tokens of each sequence, over a plain step\n{about.title}",
            f"Points: median of timed calls with {int(cost['context'])} cached tokens; dotted: the cost model.",
        )
        for place, (tokens, part) in enumerate(wide.groupby("tokens")):
            look = style.look(place)
            axes.plot(part["batch"], part["ratio"], color=look.colour, marker=look.marker, linestyle=look.dash,
                      label=f"{tokens} tokens per sequence")  # fmt: skip
            axes.plot(part["batch"], part["model_ratio"], color=look.colour, linewidth=1.3, linestyle=style.DOTTED)
        pictures.log_axis(axes, found.batches, "sequences in the batch")
        axes.set_ylabel("t(B (gamma + 1)) / t(B)")
        style.legend_above(axes, 2)
    name = "t(B), and calls on more tokens per sequence over it: measured (cost model of single calls)"
    return Section("What a call costs in a batch", tuple(text), ((name, table),), (("batching_calls", figure),))


@style.in_style
def _speedups(found: BatchNumbers, about: About) -> Figure:
    title = f"Speedup at equal batch\n{about.title}"
    caption = (
        f"Markers: measured, with 95% intervals over {counted(found.repeats, 'repeat')}; dotted: predicted with the "
        "cost model of single calls. Below the line plain decoding is faster."
    )
    rows = len(found.drafters)
    figure, panels = style.new_panels(title, caption, 1.2 + 2.7 * rows, rows, sharex=True)
    for axes, drafter in zip(panels[:, 0], found.drafters, strict=True):
        for place, gamma in enumerate(found.gammas_of(drafter)):
            look, lines = style.look(place), found.of(drafter, gamma)
            pictures.line(axes, found.batches, intervals(lines, "speedup"), look, f"gamma {gamma}")
            axes.plot(found.batches, lines["model"], color=look.colour, linewidth=1.3, linestyle=style.DOTTED)
        pictures.level(axes, 1.0)
        pictures.log_axis(axes, found.batches)
        axes.set_ylabel(f"speedup, {drafter}")
    style.legend_above(panels[0, 0], 4)
    panels[-1, 0].set_xlabel("sequences in the batch")
    return figure
