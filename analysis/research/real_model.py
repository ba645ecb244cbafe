"""Answers which drafter pays on which prompts of a real model, how wrong the formula is there and why, and what advice
would have foretold, from `results/real_model.json`, which a benchmark writes session by session: what is not measured
yet is said.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..account.gap_account import FACTORS
from ..figures import pictures, style
from ..intervals import Interval
from ..sections import Section, counted
from . import grounded_gain, heads_ablation
from .committed import BENCHMARK, RESULTS, Measured, load_figures, speedup, tokens_per_round
from .prediction_results import NAMES, errors_section

RESULT = RESULTS / "real_model.json"
COMMAND = BENCHMARK.format("test_real_model")
MODEL = "SmolLM2-135M-Instruct"
SETS = {"mt_bench": "MT-Bench", "gsm8k": "GSM8K", "humaneval": "HumanEval", "spec_bench": "Spec-Bench without MT-Bench"}
STUDIES = ("bigram", "lenience", "ngrammys_ablation", "ngrammys_grid", "phase_transition")
ALONG, DECODING, STUDY, HEADS = "along", "decoding", "study", "heads"  # parts of the benchmark
MODELS = dict(zip(NAMES, ("capped_geometric.text", "markov", "stretches", "stretches.ends"), strict=True))  # in results
TREES = "tree_search_"  # how the names of the studies of trees begin; the drafter's follows
FASTER = "2026-11-29"  # from then on a compiled call on one token takes an eighth less
SHOWN = "ngram"  # the drafter of the figure


def load_real(path: Path | str, *parts: str) -> list[Measured]:
    """Return what was measured so far in some parts of the benchmark. UsageError for a file of another kind."""
    if not Path(path).is_file():
        return []
    with load_figures(path, "test_real_model", "measurements", "measurements of a real model") as lines:
        return [line for line in lines if line["part"] in parts]


def claim_runs(path: Path | str = RESULT) -> dict[str, Measured]:
    """Return what was measured so far under the names of the runs that claims rest on (`load_results`). There is no
    smaller model with the target's tokens: `layer_skip` stands for it.
    """
    lines = load_real(path, ALONG, DECODING, STUDY)
    found = {(line["part"], line["set"], line["temperature"], line["name"]): line for line in lines}
    wanted = {
        "small_model": (DECODING, "humaneval", 0, "layer_skip"),
        "small_model_sampled": (DECODING, "humaneval", 1, "layer_skip"),
        "small_model_docs": (DECODING, "mt_bench", 0, "layer_skip"),
        "bigram_sampled": (ALONG, "humaneval", 1, "bigram"),
        "unigram": (ALONG, "humaneval", 0, "unigram"),
        "unigram_sampled": (ALONG, "humaneval", 1, "unigram"),
        **{name: (STUDY, "humaneval", 0, name) for name in STUDIES},
    }
    return {name: found[key] for name, key in wanted.items() if key in found}


def heads_sessions(lines: Sequence[Measured]) -> list[Measured]:
    """Return the figures of sessions with both kinds of heads, as `grounded_gain.sessions` has them."""
    return [{**row, "prompts": line["set"], "count": line["count"]} for line in lines for row in line["figures"]]


def real_sections(path: Path | str = RESULT) -> tuple[Section, ...]:
    """Return what pays, how wrong the formula is, what advice foretold, whether grounding pays, on which tree, and how
    many rows of n-grams do.
    """
    decoded, along, heads, studies = (load_real(path, part) for part in (DECODING, ALONG, HEADS, STUDY))
    answers = pays_section(decoded), formula_section(along, decoded), advice_section(decoded)
    return (*answers, grounding_section(heads), trees_section(studies), blocks_section(studies))


def pays_section(decoded: Sequence[Measured]) -> Section:
    """Return the speedups of every drafter in every session, and in words what pays where."""
    title = "Which drafter pays on which prompts?"
    if not decoded:
        return _missing(title, DECODING)
    told, table, categories = [], [], []
    bars: dict[str, dict[str, Interval]] = {}
    for where in dict.fromkeys(map(_where, decoded)):
        lines = [line for line in decoded if _where(line) == where]
        fast = {(line["name"], gamma): speedup(line, gamma) for line in lines for gamma in line["arms"]}
        (name, gamma), best = max(fast.items(), key=lambda item: item[1].estimate)
        paying = dict.fromkeys(drafter for (drafter, _), value in fast.items() if value.low > 1)
        others = [drafter for drafter in paying if drafter != name]
        if paying:
            beside = f"; {', '.join(others)} {'pays' if len(others) == 1 else 'pay'} too" if others else ""
            told.append(f"on {where} {name} with drafts of {gamma}, {best:.2f} times as fast as plain decoding{beside}")
        else:
            told.append(f"on {where} none beyond chance: the best is {name} with drafts of {gamma}, {best:.2f}")
        for line in lines:
            row = {"prompts": where, "drafter": line["name"]}
            row["tokens per round"] = f"{tokens_per_round(line, str(line['gamma'])):.2f}"
            row |= {f"speedup at {at}": f"{fast[line['name'], at]:.2f}" for at in sorted(line["arms"], key=int)}
            identical = line["metrics"].get("lossless/identical")
            table.append(row | {"outputs as plain": "drawn" if identical is None else f"{identical:.0%}"})
            own = [fast[line["name"], at] for at in line["arms"]]
            bars.setdefault(line["name"], {})[where] = max(own, key=lambda value: value.estimate)
            if line["name"] == name:
                logged = [key for key in line["metrics"] if key.startswith("category/") and key.endswith("/speedup")]
                for category in (key.split("/")[1] for key in logged):
                    row = {"prompts": where, "category": category.replace("_", " "), "drafter": name}
                    categories.append(row | _rates(line["metrics"], f"category/{category}/"))
    wide = pd.DataFrame(table)
    speeds = sorted((name for name in wide if name.startswith("speedup at")), key=lambda name: int(name.split()[-1]))
    columns = ["prompts", "drafter", "tokens per round", *speeds, "outputs as plain"]
    tables = [("95% prompt-bootstrap intervals; speedup by draft length, prefill apart.", wide[columns].fillna("–"))]
    caption = "The fastest drafter of each set by category, at its own draft length."
    tables += [(caption, pd.DataFrame(categories))] if categories else []
    answer = f"Of the drafters that were timed on {MODEL}, there pays: {'; '.join(told)}."
    held = [line["as_generate"] for line in decoded if "as_generate" in line]
    if held:
        equal, texts = map(sum, zip(*held, strict=True))
        answer += f" {equal} of {texts} plain texts are token by token what `generate` of transformers writes."
    caution = (
        "The best of several draft lengths and drafters is chosen on the prompts that it is judged on, which favours "
        "it a little. Drafters of one session took turns with plain decoding, prompt by prompt, compiled alike."
    )
    text = (answer, caution + _before_faster_calls(decoded), *_time_taken(decoded))
    return Section(title, text, tuple(tables), (("real_speedups", _speedups(bars)),), figures_first=True)


def formula_section(along: Sequence[Measured], decoded: Sequence[Measured]) -> Section:
    """Return the errors of predictions by gamma, and which factors take the formula's speedup to the measured one."""
    title = "How wrong is the formula, and why?"
    known = [line for line in along if all(model in line["errors"] for model in MODELS.values())]
    if not known:
        return _missing(title, ALONG)
    worst_errors = []  # over gamma, of each model
    for line in known:
        row = {"kind": _where(line), "source": line["name"], "texts": len(line["prompts"]), "tokens": line["tokens"]}
        for name, model in MODELS.items():
            by_gamma = pd.DataFrame(line["errors"][model], columns=["error", "low", "high"], dtype=float)
            worst = by_gamma["error"].abs().idxmax()
            row |= {f"{name}_mean": by_gamma["error"].mean(), f"{name}_gamma": line["gammas"][worst]}
            row |= Interval(*by_gamma.loc[worst]).as_columns(f"{name}_error")
        worst_errors.append(row)
    errors = errors_section(pd.DataFrame(worst_errors), title)
    share, reasons = [], []
    for line in decoded:
        metrics = line["metrics"]
        factors = {name: value for name in FACTORS if name != "omega" and (value := metrics.get(f"account/{name}"))}
        if factors and (promised := metrics.get("speedup.capped_geometric")):
            share.append(metrics["speedup"] / promised)
            reasons.append(min(factors, key=factors.__getitem__))
    text = [*errors.text]
    if share:
        counts = pd.Series(reasons).value_counts()
        why = "; ".join(f"{FACTORS[name].cause} ({counted(int(count), 'session')})" for name, count in counts.items())
        part = " to ".join(dict.fromkeys(f"{end:.0%}" for end in (min(share), max(share))))
        text.append(
            f"Of the speedup that the formula promises, {part} is measured in "
            f"{counted(len(share), 'session')} of a drafter. What takes most of it: {why}."
        )
    text += _time_taken(known, at_once=2)
    return Section(title, tuple(text), errors.tables, (("real_formula", _curves(known)),))


def advice_section(decoded: Sequence[Measured]) -> Section:
    """Return the speedups that `specdec.advise` foretold from plain texts beside those that were measured."""
    title = "What would advice have foretold?"
    table, right, off = [], 0, []
    for line in decoded:
        for gamma, values in line.get("advised", {}).items():
            if gamma not in line["arms"] or values[0] is None:
                continue
            foretold, measured = Interval(*np.array(values, dtype=float)), speedup(line, gamma)
            right += (foretold.estimate > 1) == (measured.estimate > 1)
            off.append(foretold.estimate / measured.estimate - 1)
            row = {"prompts": _where(line), "drafter": line["name"], "gamma": gamma, "foretold": f"{foretold:.2f}"}
            table.append(row | {"measured": f"{measured:.2f}", "error": f"{off[-1]:+.1%}"})
    if not table:
        return _missing(title, DECODING)
    errors = pd.Series(off).abs()
    answer = (
        f"`specdec.advise`, which never speculates, says rightly in {right} of {len(table)} cases whether drafts make "
        f"decoding faster or slower, and is off by {errors.median():.1%} in the median, by {errors.max():.1%} at most."
    )
    caption = "Speedups foretold from plain texts and single calls, and measured."
    return Section(title, (answer,), ((caption, pd.DataFrame(table)),))


def grounding_section(timed: Sequence[Measured]) -> Section:
    """Return by how much grounded heads are faster than independent ones, in turn on one tree, and what a feature
    drafter gives in the sessions that have it.
    """
    title = "Does grounding pay?"
    if not timed:
        return _missing(title, HEADS)
    told, featured, table = [], [], []
    for line in timed:
        figure = partial(grounded_gain.figure_of, heads_sessions([line]), line["set"])
        faster, more = map(figure, ("speedup.ratio", "tokens_per_round.difference"))
        where = f"on {line['count']} prompts of {_where(line)}"
        told.append(f"{faster:.2f} times as fast as independent ones {where}, with {more:+.2f} tokens a round")
        names = ["grounded", "medusa"]
        if any(row["method"] == "eagle" for row in line["figures"]):
            names.append("eagle")
            tokens, fast = figure("tokens_per_round", "eagle"), figure("speedup", "eagle")
            featured.append(f"{fast:.2f} times as fast as plain decoding {where}, with {tokens:.2f} tokens a round")
        for name in names:
            row = {"prompts": _where(line), "drafter": name}
            table.append(row | {shown: f"{figure(key, name):.2f}" for key, shown in grounded_gain.COLUMNS.items()})
    text = [
        f"Grounded heads are {'; '.join(told)}. Their paper has {grounded_gain.PUBLISHED_SPEEDUP} and "
        f"{heads_ablation.PUBLISHED_GAIN:+} for Vicuna-7B on MT-Bench. The card of the heads says how little they were "
        "trained."
    ]
    if featured:
        text.append(f"The feature drafter (EAGLE-3), which learned from the same text, is {'; '.join(featured)}.")
    return Section(title, tuple(text), (("Plain decoding in turn with what learned from it.", pd.DataFrame(table)),))


def trees_section(studies: Sequence[Measured]) -> Section:
    """Return what the trees that were searched for the drafters which learned from the model give, beside chains and
    dynamic trees.
    """
    title = "Which tree for what learned from it?"
    told, table = [], []
    for line in (line for line in studies if line["name"].startswith(TREES)):
        name, metrics = line["name"].removeprefix(TREES), line["metrics"]
        if "tree_search/chosen.speedup" in metrics:
            nodes, depth = (int(metrics[f"tree_search/chosen.{what}"]) for what in ("nodes", "depth"))
            found = Interval.from_metrics(metrics, "tree_search/chosen.speedup")
            tree = f"one of {counted(nodes, 'node')} and depth {depth}, {found:.2f} times as fast as plain decoding"
        else:
            tree = "none, since plain decoding was predicted to be faster"
        told.append(f"for {name} {tree} on {_where(line)}")
        for shape, what in (("tree", "nodes"), ("chain", "gamma"), ("dynamic", "nodes")):
            prefix = f"tree_search/{shape}.speedup."
            for size in sorted(int(end) for key in metrics if (end := key.removeprefix(prefix)).isdigit()):
                row = {"drafter": name, "structure": f"{shape}, {what} {size}"}
                table.append(row | _rates(metrics, f"tree_search/{shape}.", f".{size}"))
    if not told:
        return _missing(title, STUDY)
    answer = (
        "The tree with most predicted tokens per second, built on one half of the prompts from how often each choice "
        f"is right and decoded on the other, is {'; '.join(told)}."
    )
    caption = "Decoded in turn with plain decoding, on one thread; the fastest of several is flattered by its choice."
    return Section(title, (answer,), ((caption, pd.DataFrame(table)),))


def blocks_section(studies: Sequence[Measured]) -> Section:
    """Return the fastest block of N-Grammys on each set of prompts, beside the paper's (10, 10) and beside rows of the
    model's own bigram alone.
    """
    title = "How many rows of n-grams pay?"
    bigrams = {line["set"]: line["metrics"] for line in studies if line["name"] == "ngrammys_topk"}
    told, table = [], []
    grids = [line for line in studies if line["name"] == "ngrammys_grid"]
    for line in grids:
        metrics, where = line["metrics"], _where(line)
        shape = f"({metrics['grid/best_k']:.0f}, {metrics['grid/best_w']:.0f})"
        row = {"prompts": where, "fastest (k, w)": shape}
        for name, key in (("", "best"), (", (10, 10)", "10x10")):
            row[f"tokens a call{name}"] = f"{metrics[f'grid/whole.{key}.tokens_per_call']:.2f}"
            row[f"speedup{name}"] = f"{Interval.from_metrics(metrics, f'grid/whole.{key}.speedup'):.2f}"
        if bigram := bigrams.get(line["set"]):
            best = "topk/model_bigram.w2.best"
            row["tokens a call, bigram alone"] = f"{bigram[best]:.2f} in {bigram[best + '_k']:.0f} rows"
        than = f"as plain decoding where (10, 10) is {row['speedup, (10, 10)']}"
        told.append(f"{shape} on {where}, {row['speedup']} times as fast {than}")
        table.append(row)
    if not told:
        return _missing(title, STUDY)
    answer = f"The fastest block of k rows of w draft tokens on one thread is {'; '.join(told)}."
    answer += _before_faster_calls(grids)
    caption = (
        "Whole runs in turn with plain decoding; the fastest of several shapes is flattered by its choice. The model's "
        "own bigram alone drafts rows of two tokens."
    )
    tables = [(caption, pd.DataFrame(table).fillna("–"))]
    calls = []  # a line for each number of tokens in the cache
    for line in (line for line in studies if line["name"] == "phase_transition"):
        metrics = line["metrics"]
        for context in sorted(map(int, line["slowdowns"])):
            row = {"prompts": _where(line), "in the cache": str(context)}
            row["(1, 1), ms"] = f"{metrics[f'transition/t11_ms.{context}']:.0f}"
            for way, prefix in (("in rows", ""), ("packed", "packed.")):
                row[f"(10, 10), {way}"] = f"{metrics[f'transition/{prefix}slowdown.10x10.{context}']:.1f}"
                row[f"tokens, {way}"] = f"{metrics[f'transition/{prefix}tokens_within_10pct.{context}']:.0f}"
            calls.append(row | {"measured on": line.get("processor", "unknown")})
    if calls:
        caption = (
            "Calls on random tokens: t(10, 10) over t(1, 1), and how many tokens take at most a tenth longer than "
            "(1, 1). In rows each row has a cache, as in the paper; packed, all lie in one sequence over one."
        )
        tables.append((caption, pd.DataFrame(calls)))
    return Section(title, (answer,), tuple(tables))


def _before_faster_calls(lines: Sequence[Measured]) -> str:
    """Return a sentence on speedups that were measured before calls on one token became faster; "" without such."""
    before = sorted({_where(line) for line in lines if line.get("date", FASTER) < FASTER})
    if not before:
        return ""
    return (
        f" Calls on one token take an eighth less since {FASTER}: speedups that were measured before, on "
        f"{'; '.join(before)}, divide by longer calls and would be lower by up to so much today."
    )


def _time_taken(lines: Sequence[Measured], at_once: int = 1) -> tuple[str, ...]:
    """Return a sentence on how long those sessions took that wrote it down, `at_once` at a time; none without such."""
    minutes = {(_where(line), line.get("date"), line.get("minutes")) for line in lines}
    known = [taken for *_, taken in minutes if taken is not None]
    if not known:
        return ()
    of = f"{len(known)} of its {counted(len(minutes), 'session')}"
    hours = f"{sum(known) / 60 / at_once:.1f} hours together" + (f", {at_once} at a time" if at_once > 1 else "")
    return (f"The benchmark wrote down how long {of} took: {hours}.",)


def _missing(title: str, part: str) -> Section:
    return Section(title, (f"Nothing of this part is measured yet: `{COMMAND} -k {part}` measures it, and goes on.",))


def _where(line: Measured) -> str:
    heat = f"temperature {line['temperature']}" if line["temperature"] else "greedy"
    return f"{SETS[line['set']]}, {heat}"


def _rates(metrics: Mapping[str, float], before: str, behind: str = "") -> dict[str, str]:
    """Return tokens per round and speedup in print; before, behind: the ends of the names of their metrics."""
    names = {what.replace("_", " "): f"{before}{what}{behind}" for what in ("tokens_per_round", "speedup")}
    return {what: f"{Interval.from_metrics(metrics, name):.2f}" for what, name in names.items()}


@style.in_style
def _speedups(bars: Mapping[str, Mapping[str, Interval]]) -> Figure:
    """Draw the best speedup of each drafter in each session."""
    places = list(dict.fromkeys(where for values in bars.values() for where in values))
    caption = (
        "Each drafter at its best draft length; T: temperature. Spec-Bench without MT-Bench. Whiskers: 95% "
        "prompt-bootstrap intervals. Dotted: plain decoding."
    )
    figure, axes = style.new_figure(f"Speedup by prompts and drafter, {MODEL}", caption, 5.6)
    pictures.bars(axes, {name: [values.get(where, Interval(nan)) for where in places] for name, values in bars.items()})
    pictures.level(axes, 1.0)
    short = [where.replace(" without MT-Bench", "").replace("temperature", "T =") for where in places]
    names = [where.replace(", ", "\n").replace("-B", "-\nB") for where in short]
    axes.set_xticks(range(len(places)), names, fontsize=9)
    axes.set_ylabel("speedup")
    style.legend_above(axes, 3)
    return figure


def _curves(along: Sequence[Measured]) -> Figure:
    """Draw tokens per round over gamma for one drafter, read off greedy answers, with what the formula predicts."""
    drawn = [line for line in along if line["name"] == SHOWN and not line["temperature"]] or list(along[:1])
    lines: dict[str, pictures.Line] = {}
    for place, line in enumerate(drawn):
        look, dashed = style.look(place), style.look(place)._replace(dash="--", marker="")
        read = line["tokens_per_round"]
        bounds = [Interval(*row) for row in np.column_stack([read, line["intervals"]]).astype(float)]
        errors = [error[0] for error in line["errors"][MODELS["textbook"]]]
        promised = [Interval(value * (1 + error)) for value, error in zip(read, errors, strict=True)]
        lines[SETS[line["set"]]] = (line["gammas"], bounds, look)
        lines[f"_{line['set']}"] = (line["gammas"], promised, dashed)
    return pictures.chart(
        pictures.Panel("tokens per round", lines),
        title=f"{drawn[0]['name']} on {MODEL}: read off its answers, and by the formula (no markers)",
        caption="Greedy answers; half of the texts predicted from the other and the reverse. Whiskers: 95% intervals.",
        xlabel="draft tokens a round",
        columns=2,
    )
