"""The page `measurements.md` of the guide: every committed measurement of `analysis/results`, with machine and date.

No measured figure stands in this file: all are read, so that a measurement that is made again renews the page.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..cost.call_cost import predicted_calls
from ..intervals import Interval
from ..research.claims import claims_section, evidence
from ..research.committed import RESULTS, load_results
from ..research.grounded_gain import PUBLISHED_SPEEDUP
from ..research.heads_ablation import ablation_sections
from ..research.heads_accuracy import accuracy_section
from ..research.heads_tree import tree_sections
from ..research.prediction_results import prediction_families, prediction_results
from ..research.real_model import ALONG, MODEL, SETS, load_real, real_sections
from ..studies.batching import BatchNumbers, best_table, committed_study
from .html import cell

GROUPS = (
    "First run and other engines",
    "What a call costs",
    "Drafters and structures",
    "Heads and feature drafters",
    "Prediction and statistics",
    "Batches and load",
    "Look-ups and recorded text",
    "Models that work",
    "Trainings",
)
_, COST, DRAFTERS, HEADS, STATISTICS, LOAD, LOOKUP, MODELS, _ = GROUPS
LOOPS = "A model that loops less"  # of sessions.json: its date tells today's pocket target from the earlier one
ON_POCKET_TEXT = ("heads_ablation", "batching", "serving")  # their figures depend on what the pocket target writes
INTRODUCTION = """# What was measured

Every figure that this project measured on a certain machine and day. `python -m specdec.analysis.pages.guide` makes
this page from `analysis/results/*.json`, and a test compares the two, so that no figure here goes stale unseen.
Intervals are 95% intervals. Most figures are of the small pocket models on two CPU cores: they show how the tool works,
and say nothing about large models. Those of `python tests/benchmarks/gpu.py`, which an H100 made, are in notebook 11.
Where a section ends with the name of a benchmark, such as
`test_memory.py`, it is measured again by `python -m pytest -n 0 -m benchmark tests/benchmarks/test_memory.py`."""
STALE = (
    "**Older model:** the pocket target of before {date} looped far more often ([figures](#{anchor})); drafters that "
    "copy yield less today."
)

Table = list[dict[str, Any]]
Says = Callable[[Path], tuple[str, Table]]


class Measurement(NamedTuple):
    """A section of the page: what it means, and `says`, which reads sentences and a table from the result file."""

    group: str
    result: str
    title: str
    meaning: str
    says: Says | str | None  # a string: the form of `_lines`; None: the file holds its own words and tables
    source: str = ""  # Markdown; "" is the benchmark of the file's name


def measurements_page(results: Path = RESULTS) -> str:
    """Return the page as Markdown, from the files of one folder; what was not measured yet has no section."""
    read = [Measurement(group, name, *row) for group, rows in MEASUREMENTS.items() for name, row in rows.items()]
    written = [
        Measurement(part["group"], path.stem, title, part["meaning"], None, part["source"])
        for path in sorted(results.glob("*.json"))
        for title, part in _read(path).items()
        if isinstance(part, dict) and "meaning" in part
    ]
    parts = [part for part in (*written, *read) if (results / f"{part.result}.json").is_file()]
    blocks = [INTRODUCTION]
    for group in GROUPS:
        blocks += [f"## {group}", *(_block(part, results) for part in parts if part.group == group)]
    return "\n\n".join(blocks) + "\n"


def markdown(table: Table) -> str:
    """Write a pipe table whose cells are Markdown."""
    lines = [list(table[0]), ["---"] * len(table[0])]
    for row in table:
        shown = (str(value) if isinstance(value, float) else cell(value) for value in row.values())
        lines.append([text.replace("|", "\\|").replace("<", "&lt;") for text in shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _block(part: Measurement, results: Path) -> str:
    path = results / f"{part.result}.json"
    content = _read(path)
    facts = content.get(part.title, content)
    if isinstance(part.says, str):
        sentences, table = "", _lines(path, part.says)
    else:
        sentences, table = part.says(path) if part.says else ("", facts["figures"])
    measured = facts if "date" in facts else next(iter(facts.values()))  # one entry for each setting
    date, machine = measured["date"], measured.get("machine")
    if machine is None:  # as benchmarks write it
        cpu = measured["cpu"] if isinstance(measured["cpu"], dict) else {"model": measured["cpu"]}
        load = measured.get("load_average", cpu.get("load_average"))
        before = load["start"][0] if isinstance(load, dict) else load[0]
        cores = f", {cpu['physical_cores']} cores" if "physical_cores" in cpu else ""
        machine = f"{cpu['model']}{cores}, load average {before} before"
    blocks = [f"### {part.title}", " ".join(filter(None, (part.meaning, sentences)))]
    blocks += [markdown(table)] if table else []
    today = _read(results / "sessions.json")[LOOPS]["date"]
    if (part.result in ON_POCKET_TEXT or facts.get("pocket")) and date < today:
        blocks.append(STALE.format(date=today, anchor=LOOPS.lower().replace(" ", "-")))
    source = part.source or f"`test_{part.result}.py`"
    conditions = f"; {facts['conditions']}" if "conditions" in facts else ""
    return "\n\n".join([*blocks, f"*{date}: {machine}{conditions}. In `{path.name}`, by {source}.*"])


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path, form: str) -> Table:
    """Return a line for each figure by "what | name=format | name=format": `what` begins its own, `{rest}` follows."""
    what, *columns = form.split(" | ")
    forms = dict(column.split("=", 1) for column in columns)
    figures = [
        {**figure, "rest": figure["what"].removeprefix(what).strip()}
        for figure in _read(path)["figures"]
        if figure["what"].startswith(what)
    ]
    return [{name: column.format_map(figure) for name, column in forms.items()} for figure in figures]


def _calls(path: Path) -> tuple[str, Table]:
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    figures = [figure for figure in _read(path)["figures"] if figure["what"] != "bandwidth"]
    for figure in figures:
        named = {"model": f"{figure['parameters'] / 1e6:.0f} M weights, {figure['dtype']}"}
        named |= {"threads": figure["threads"], "call": figure["what"]}
        row = rows.setdefault(tuple(named.values()), named)
        row[f"`{figure['compile']}`"] = f"{figure['over_read']:.2f} ({figure['ms']:.2f} ms)"
    speeds = ", ".join(
        f"{line['median']} GB/s on {line['threads']} thread{'s' * (line['threads'] > 1)}"
        for line in _read(path)["figures"]
        if line["what"] == "bandwidth" and (line["model"], line["dtype"]) == ("causal", "bfloat16")
    )
    context = min(figure["context"] for figure in figures)
    return f"Calls stand behind {context} cached tokens; memory was read at {speeds}.", list(rows.values())


def _architectures(path: Path) -> tuple[str, Table]:
    outcomes = {  # outcome in the file, or words of the refusal: the same in the table
        "packed": "trees in one sequence",
        "rows": "drafts that branch by rows",
        "cannot be rolled back": "refused: state that cannot be rolled back",
        "takes no cache": "refused: they take no cache",
        "a later token changes": "refused: later tokens change earlier logits",
        "does not take the mask": "refused: they do not take our masks or positions",
        "cannot be used": "refused: other logits over a cache",
        "not built": "no tiny model was made, or comparing it took too long: not known",
    }
    names: dict[str, list[str]] = {outcome: [] for outcome in outcomes}
    lines = _read(path)["figures"]
    for line in lines:
        said = line["why"] if line["outcome"] == "refused" else line["outcome"]
        names[next(words for words in outcomes if words in said)].append(f"`{line['architecture']}`")
    counts = {words: len(listed) for words, listed in names.items()}
    names["packed"] = ["all that are not named below"]
    which = {words: ", ".join(listed) for words, listed in names.items()}
    table = [{"outcome": outcomes[words], "number": counts[words], "which": which[words]} for words in outcomes]
    version = _read(path)["versions"]["transformers"]
    again = ", ".join(f"`{line['architecture']}` on {line['date']}" for line in lines if "date" in line)
    made = f" Made again since: {again}." * bool(again)
    return f"These are the {len(lines)} architectures of transformers {version} with a causal head.{made}", table


def _experts(path: Path) -> tuple[str, Table]:
    said, table = [], []
    for figure in _read(path)["figures"]:
        last = {name: figure[name][-1] for name in ("recorded", "independent", "uniform", "read_recorded", "timed")}
        said.append(
            f"{figure['what'].capitalize()} weights, {figure['weights'] / 1e6:.0f} M, {figure['chosen']} of "
            f"{figure['experts']} experts: {figure['n'][-1]} tokens take {last['timed']:.2f} times as long as one and "
            f"read {last['read_recorded']:.2f} times as much; one token reads "
            f"{figure['gigabytes_a_second'][0]:.1f} GB/s."
        )
        known = (figure["n"][0], figure["n"][-1])
        laws = {"recorded": "recorded experts", "independent": "independent tokens", "uniform": "equal chances"}
        predicted = {law: predicted_calls(figure["n"], figure[f"read_{law}"], figure["ms"], known) for law in laws}
        errors = {law: np.abs(ms / figure["ms"] - 1)[1:-1] for law, ms in predicted.items()}
        words = [f"{np.median(errors[law]):.0%} ({errors[law].max():.0%}) by {told}" for law, told in laws.items()]
        said.append(
            f"Fitted on {known[0]} and {known[1]} tokens, the cost model of reading and computing misses the other "
            f"calls by a median (at most) of {', '.join(words[:2])} and {words[2]}."
        )
        values_of = figure | {"predicted": predicted["recorded"]}
        shown = {"ms": "ms", "ms predicted": "predicted", "t(n) / t(1)": "timed"}
        shown |= {"by recorded experts": "read_recorded"}
        shown |= {"by independent tokens": "read_independent", "and equal chances": "read_uniform"}
        shown |= {"experts recorded": "recorded", "independent": "independent", "equal": "uniform"}
        for place, n in enumerate(figure["n"]):
            if n in (1, 2, 3, 4, 5, 8, 12, 16):
                values = {name: f"{values_of[key][place]:.2f}" for name, key in shown.items()}
                table.append({"weights": figure["what"], "n": n, **values})
    return " ".join(said), table


def _both_heads(path: Path) -> tuple[str, Table]:
    rows: dict[str, dict[str, Any]] = {}
    for line in _read(path)["figures"]:
        if line["category"] == "all" and "against" in line["method"]:
            row = rows.setdefault(line["prompts"], {"prompts": f"{line['prompts']}, {line['count']} prompts"})
            row[f"`{line['figure']}`"] = f"{Interval(line['value'], line['low'], line['high']):.2f}"
    return f"The paper has {PUBLISHED_SPEEDUP} times the speed.", list(rows.values())


def _head_accuracy(path: Path) -> tuple[str, Table]:
    section = accuracy_section(path)
    return section.text[0], section.tables[0][1].iloc[:, :4].to_dict("records")


def _trees(path: Path) -> tuple[str, Table]:
    section = tree_sections(path)[0]
    return f"{section.text[0]} {section.text[2]}", []


def _ablation(path: Path) -> tuple[str, Table]:
    grounding, variants = ablation_sections(path)[:2]
    return f"{grounding.text[0]} {grounding.text[1]} {variants.text[0]}", []


def _prediction(path: Path) -> tuple[str, Table]:
    section = prediction_results(path)
    table = section.tables[0][1]
    worst = [name for name in table if name.endswith("worst")]
    return section.text[0], table.loc[table["kind"] == "pocket, code", ["source", *worst]].to_dict("records")


def _real_model(path: Path) -> tuple[str, Table]:
    table: Table = []
    for line in (line for line in load_real(path, ALONG) if not line["temperature"]):
        rates = dict(zip(line["gammas"], line["tokens_per_round"], strict=True))
        row = {"prompts": SETS[line["set"]], "drafter": line["name"], "tokens": line["tokens"]}
        table.append(row | {f"gamma {gamma}": f"{rates[gamma]:.2f}" for gamma in (1, 2, 4, 8, 15) if gamma in rates})
    return " ".join(section.text[0] for section in real_sections(path) if section.tables), table


def _families(path: Path) -> tuple[str, Table]:
    section = prediction_families(path)
    return section.text[0], section.tables[0][1].to_dict("records")


def _few_prompts(path: Path) -> tuple[str, Table]:
    table: Table = []
    for line in (line for line in _read(path)["figures"] if "coverage" in line):
        names = ("tokens per round", "alpha", "speedup")
        form = "{:.1%}" if line["shown"] else "– ({:.1%})"
        held = {name: form.format(line["coverage"][name]) if name in line["coverage"] else "–" for name in names}
        row = {"simulated": line["what"].partition(", ")[2], "prompts": line["prompts"], **held}
        row |= {"percentiles of the speedup": f"{line['percentiles_of_speedup']:.1%}"}
        table.append(row | {"high over low": f"{line['span_of_speedup']:.2f}"})
    fewest = min(row["prompts"] for row in table if "–" not in str(row["speedup"]))
    return f"Below {fewest} prompts there is none (–): what it would hold stands in brackets.", table


def _coverage(path: Path) -> tuple[str, Table]:
    tests = [line for line in _read(path)["figures"] if line["what"].startswith("size of the test")]
    shares = [line["rejected"]["share"] for line in tests]
    rejected = f"{min(shares):.1%} to {max(shares):.1%} of true models at {tests[0]['what'].rpartition(' ')[2]}"
    sentence = f"Each of {len(tests)} tests of the i.i.d. model rejects {rejected}."
    form = (
        "coverage of the 95% interval of | simulated={rest} | prompts={prompts}"
        " | prompts resampled={prompt_bootstrap[share]:.1%}"
        " | rounds taken as independent={rounds_as_the_unit[share]:.1%}"
    )
    return sentence, _lines(path, form)


def _batching(path: Path) -> tuple[str, Table]:
    study = committed_study(path)
    return "", best_table(BatchNumbers(study.tables, study.about.replicates, study.about.seed)).to_dict("records")


def _beside_other_work(path: Path) -> tuple[str, Table]:
    runs: dict[tuple[Any, ...], Table] = {}
    for figure in _read(path)["figures"]:
        key = tuple(figure[name] for name in ("model", "drafter", "threads_asked", "level"))
        runs.setdefault(key, []).append(figure)
    return "", [
        {
            "run": f"{model}, {drafter}, {threads or 'own choice of'} threads",
            "other work": f"{level:.0%}",
            **{name: ", ".join(f"{f[name]:.0%}" for f in seeds) for name in ("taken", "said")},
            "by the clock": ", ".join(f"{f['by_clock']:.2f}" for f in seeds),
            "speedup": ", ".join(f"{f['speedup'][0]:.2f}" if f["verdict"] else "–" for f in seeds),
        }
        for (model, drafter, threads, level), seeds in runs.items()
    ]


def _llama_server(path: Path) -> tuple[str, Table]:
    """Say which factors of a server's account part from those of our own run, as far as both have intervals."""
    figures = _read(path)["figures"]
    names = {"tokens": "tokens per round", "step": "a longer step", "rest": "the rest", "gain": "gain"}
    ours = {figure["what"]: figure for figure in figures if figure["way"].startswith("specdec")}
    parted = []
    for figure in figures:
        if "inside" in figure["way"] and (own := ours.get(figure["what"])):
            for name, words in names.items():
                (_, low, high), (_, own_low, own_high) = figure[name], own[name]
                if low > own_high or own_low > high:
                    parted.append(words)
    said = f"Beside specdec's run {' and '.join(parted) or 'nothing'} differ beyond the intervals." if ours else ""
    rows = [
        {
            "drafts": figure["what"],
            "account": figure["way"],
            **{words: _with_interval(figure[name]) for name, words in names.items()},
            "outputs of plain decoding": f"{figure['identical']:.0%}",
        }
        for figure in figures
    ]
    return said, rows


def _with_interval(values: list[float]) -> str:
    value, low, high = values
    return f"{value:.2f}" if low == high else f"{value:.2f} ({low:.2f} to {high:.2f})"


def _serving(path: Path) -> tuple[str, Table]:
    return "", [{"server": name, "finding": said["sections"][0]["text"][0]} for name, said in _read(path).items()]


MEASUREMENTS: dict[str, dict[str, tuple[Any, ...]]] = {  # group: result file: title, meaning, says, source
    COST: {
        "compile_speed": (
            "Calls beside the reading of their weights",
            "The time of a call over that of reading the weights from memory, for each `target.compile`; t(5) is a "
            "call on five tokens. A model that fits into the processor's caches can take less than one reading.",
            _calls,
        ),
        "experts": (
            "Calls of a mixture, by the experts that they read",
            "Two small mixtures, one of random weights on random tokens, one trained on the spot on the book whose "
            "later part it verifies. t(n) / t(1) as timed stands beside what it would be if a call took as long as "
            "it reads weights: those of the experts that the tokens chose, of as many as independent tokens would "
            "choose by their own chances, and by equal chances. Below what the machine can read in a second, "
            "computing bounds calls, too. The predicted ms have a term for each: a call reads the experts that its "
            "tokens chose, and computes for each token. The last columns are distinct experts in a layer.",
            _experts,
        ),
        "first_token": (
            "To the first token",
            "From the start of a process to the first compiled token of SmolLM2: with no program in the folder and none"
            " of torch's precompiled headers, then with all. torch keeps these headers, 300 MB, in the temporary "
            "folder. Memory is the peak beyond that of the imports, over the weights; the compiler's modules, which a "
            "start from nothing imports besides, are in it.",
            "start, | start={rest} | seconds={seconds:.1f} | programs, MB={files_mb:.0f}"
            " | memory over weights={over_weights:.2f}",
        ),
        "memory": (
            "Memory while decoding",
            "Decoding needs weights, cache and little else: the last column is growth beyond the cache over weights.",
            "growth | model={model}, {dtype} | weights, MB={weights_mb} | cache, MB={cache_mb}"
            " | growth, MB={growth_mb} | beyond the cache={growth_beyond_cache_over_weights:.1%}",
        ),
        "busy_calls": (
            "Calls while other work takes a processor",
            "Milliseconds of a call of SmolLM2-135M by plain modules in float32 while other work computes on none of"
            " two processors, on one or on both, quartiles in brackets. Two threads spin while one waits for the "
            "other, unless `OMP_WAIT_POLICY=PASSIVE` is set, which costs a quarter of a call on five tokens on a "
            "quiet machine: so runs leave waiting as it is, and compute on one thread less where other work takes a "
            "processor.",
            "t( | call=t({rest} | threads={threads} | waiting={waiting} | processors taken={burners}"
            " | ms={ms:.1f} ({quartiles_ms[0]:.1f} to {quartiles_ms[1]:.1f})",
        ),
        "watch_cost": (
            "What watching for other work takes",
            "Every second round of plain decoding by the pocket model is watched and compared with its two "
            "neighbours: what it takes longer, as a share of all decoding, with 95% bounds by resampling texts.",
            "share of watching | `target.compile`={compile} | rounds={rounds} | round, ms={ms_a_round:.2f}"
            " | watching={share:.2%} ({share_95[0]:.2%} to {share_95[1]:.2%})",
        ),
    },
    HEADS: {
        "grounded_bars": (
            "Grounded heads over independent ones",
            "The shipped heads of both kinds in one session and on one tree.",
            _both_heads,
        ),
        "heads_accuracy": (
            "Accuracy by head",
            "How often the shipped heads are right with their first choice, or with one of five.",
            _head_accuracy,
        ),
        "heads_tree": ("Which tree for heads", "Searched trees beside the one drawn by hand.", _trees),
        "heads_ablation": (
            "What matters in grounded heads",
            "Variants that were trained briefly and alike.",
            _ablation,
        ),
    },
    STATISTICS: {
        "paper_claims": (
            "Claims of the founding papers",
            "Each claim, with its answer and its command, stands in [the founding papers](papers.md).",
            lambda path: (claims_section(replace(evidence(), runs=load_results(path))).text[0], []),
        ),
        "prediction_error": (
            "Predictions on texts that were not fitted",
            "The error of predicted tokens per round, the worst over all gammas; the table is of the pocket target's"
            " code.",
            _prediction,
        ),
        "prediction_families": (
            "Predictions where texts differ in length and acceptance",
            "Simulated families of texts, of which half are fitted at gamma 15 and the others predicted at gamma 1 "
            "to 15.",
            _families,
        ),
        "few_prompts": (
            "Do the intervals hold with few prompts?",
            "How often 95% intervals hold the true value in simulated runs, how often bare percentiles of the "
            "speedup do, and how many times its low end the high end of the speedup's interval is, in the median.",
            _few_prompts,
        ),
        "interval_coverage": (
            "Do they hold where prompts differ?",
            "The same, beside intervals that take rounds as independent.",
            _coverage,
        ),
        "gate_power": (
            "False alarms and power of the gate",
            "Rounds of recorded runs of the pocket target are drawn again, text by text, for an earlier run and for "
            "later ones, in which some drafts are then rejected at an earlier depth (for the speedup: all rounds are"
            " slower). Promised are 0.5% false alarms over all candidates. Shown: how often a drop is found, the "
            "drop that the gate says it would find in 80%, in the median of runs without a drop, and how often that "
            "drop was found.",
            "gate: | texts={rest} | of={trace} | prompts={prompts} | false alarms={false_alarms:.2%}"
            " | 2% found={power[2%]:.0%} | 5% found={power[5%]:.0%} | 10% found={power[10%]:.0%} | said={said:.1%}"
            " | found={power_at_said:.0%}",
        ),
        "busy_machine": (
            "Do they hold where other work disturbs a run?",
            "Disturbances that were recorded on this machine (the quantiles of how much longer a round took stand in"
            " the file), or milder ones of a factor of 1.3 or 2, are injected into the rounds of a quiet run: single"
            " ones or in bursts of 0.1, 1 or 10 seconds, in the drafter's rounds, in plain decoding's or in both. "
            "The share of runs whose 95% interval holds the undisturbed speedup, of those that give a verdict; the "
            "width is over that of the same run without other work.",
            "coverage of the 95% interval of the speedup | time disturbed={level:.0%} | by the clock={by_clock:.1%}"
            " | repaired={repaired:.1%} | the same run's own speedup={repaired_own:.1%} | no verdict={withheld:.1%}"
            " | width, median={interval_over_quiet[median]:.2f} | largest={interval_over_quiet[largest]:.2f}",
        ),
        "busy_live": (
            "Runs beside a process that computes",
            "Runs on two cores, three seeds each, while another process computes on one of them in bursts of two "
            "seconds in the mean: the share of the rounds' time in which it did, the share that the run said was "
            "disturbed, the speedup by the clock, which is what was said before disturbed rounds were left out, and "
            "the speedup that is said now (–: no verdict). The share is that of a drafter's rounds and of those it "
            "is compared with; what the system itself takes is a part of it. Where a run chooses its own threads and"
            " finds other work, it computes on one, and leaves the other processor to that.",
            _beside_other_work,
        ),
    },
    DRAFTERS: {
        "real_model": (
            "A real model, by prompts and drafter",
            f"{MODEL} on chat prompts, word problems, code and the tasks of Spec-Bench; notebook 12 has figures and "
            "more tables. This one is of greedy answers: tokens per round read off them, by draft length.",
            _real_model,
        ),
    },
    LOAD: {
        "batching": (
            "Speedup at equal batch",
            "Seconds per token of plain decoding over those with drafts, both on as many sequences, with the best "
            "gammas.",
            _batching,
        ),
        "serving": (
            "A server under load",
            "When a server should stop speculating. All is simulated but the seconds of a step on the pocket target.",
            _serving,
            "`test_serving_load.py`",
        ),
        "llama_server": (
            "A llama.cpp server, explained while it runs",
            "SmolLM2 behind the server of llama.cpp, one request at a time, with and without drafts: the account "
            "that `specdec.explain` makes of sums, the same by the counters of every round, and that of specdec's "
            "own run. The product of a line's factors is its gain, prompts included. The server keeps the weights in"
            " 4 bits and the kernels of every processor, ours computes with them in float32, compiled: what a wider "
            "step costs is each engine's own.",
            _llama_server,
        ),
    },
    LOOKUP: {
        "ngram_speed": (
            "A proposal of context n-grams",
            "Microseconds of a proposal behind a long text of Zipf-distributed tokens.",
            "proposal at | behind={rest} | draft={structure} | tokens a round={tokens_per_round} | median={median_us}"
            " | 99%={p99_us}",
        ),
        "retrieval_speed": (
            "A query of a large datastore",
            "Median microseconds of a look-up, and of a whole draft with it.",
            "query of | datastore={rest} | draft={structure} | query={query_us} | 99% of them={query_p99_us}"
            " | draft={draft_us}",
        ),
        "corpus_ngram_speed": (
            "Fitting an n-gram model to a text",
            "The fit is kept for later runs.",
            "fitting | text={rest} | order={order} | tokens={tokens:,} | tokenize, s={tokenize_s} | count, s={count_s}"
            " | memory, MB={peak_mb:,}",
        ),
        "bigram_speed": (
            "The target's own bigram as a table",
            "The table of what the target says after each single token is made once and read again by later runs.",
            "a table of | model={model} | vocabulary={vocabulary:,} | later tokens={extend} | made, s={made_s}"
            " | read, s={read_s} | file, MB={file_mb}",
        ),
        "replay_speed": (
            "Recorded text: the walk beside the decoding loop",
            "Tokens a second and core at one gamma. Look-up drafters walk along a recorded text instead of decoding "
            "it.",
            "tokens a second and core, rounds | drafter={drafter} | loop={loop:,} | walk={walk:,}",
        ),
    },
    MODELS: {
        "architectures": (
            "Architectures of transformers",
            "Each was made as a tiny random model in its default configuration and compared with plain forward "
            "passes. BERT and its kin, which are no decoders by default, were made with `is_decoder=true`. Models "
            "whose layers keep a state are among those that take branching drafts by rows. These two were made, and "
            "all that were refused or not made on 2026-11-24 tried again, on 2026-11-26, some of them with short "
            "scans or windows.",
            _architectures,
        ),
    },
}
