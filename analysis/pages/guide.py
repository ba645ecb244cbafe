"""Makes the pages of the guide that are generated, and renews its pictures from the folder of a finished run.

    python -m specdec.analysis.pages.guide [RUN_FOLDER]

Pages come from `conf/`, `analysis/results/` and the tables below; only the glossary is written by hand, on its page.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

import yaml
from PIL import Image  # comes with matplotlib

from specdec.config import config_dir
from specdec.errors import EXIT_CODES, UsageError

from .measurements import Table, markdown, measurements_page

COMMAND = "python -m specdec.analysis.pages.guide"
PICTURES = {"account.png": "account.png", "speedup.png": "curve_speedup.png"}  # picture of the guide: figure of a run
_GLOSSARY = ("<!-- glossary: written by hand, kept by the generator -->", "<!-- end of the glossary -->")
_OVERLAYS = ("experiment", "heads/ablation", "debug", "notebook")  # groups whose files hold choices, and no keys
_PLACES = {"corpus": "recipe.corpus.", "head_data": "data.", "cost": ""}  # where keys stand, if not below their group
_GLOBAL = "# @package _global_"
_MOST_KEYS = 20  # of a mapping that is shown key by key
_LONGEST = 60  # characters of a value that is shown

RUN_FILES = {  # files of a run's folder: what each holds; a test compares them with those of real runs
    "report.md": "the table, the account, the cost of a call, the prediction, the flags to serve it with",
    "summary.json": "all metrics and curves",
    "account.json": "the factors of the account with their intervals",
    "figures/": "curves over gamma, the account as a waterfall, accepted lengths, where a round's time goes",
    "trace.html": "the first outputs round by round: accepted, rejected, corrected",
    "rounds.parquet": "one line for each round, with the clock's seconds, those that threads waited for a processor "
    "(`waited_s`), whether other work disturbed it so (`disturbed`), and what of `commit_s` brought back a state "
    "(`restore_s`)",
    "generations.jsonl": "every output, token by token",
    "replay.parquet": "the drafter replayed along the baseline's texts",
    "alpha.parquet": "the chance that a draft token is accepted, position by position",
    "experts.parquet": "the experts that verifications of a mixture chose, and what they read",
    "loads.parquet": "of load tests alone (`specdec.explain --out`): each server's throughput and times at every load",
    "calibration.json": "timed calls, how many other work disturbed, which passes serve them, and on how many threads",
    "cost.json": "the cost model t(n) and what it was fitted to",
    "sampled.parquet": "decoding at `measurement.sampled_temperature`, beside a greedy run",
    "quality.parquet": "what a rule that is not lossless did to the text",
    "peers.json": "other engines beside ours",
    "plan.json": "what was run",
    "session.json": "what was counted and left out",
    "traces.json": "the traced texts",
    "divergences.json": "where greedy outputs parted from the baseline's, and why",
    "streams.jsonl": "the baseline's texts for `target=replay`, with `measurement.record=true`",
    "environment.json": "versions, hardware, hashes, what the models' probe found",
    "config.yaml": "the resolved configuration",
    "status.json": "how the run ended, or how far it came",
    "tracking.json": "what MLflow is to know of the run: name, parameters, tags, prompts, end",
    "tracking_metrics.jsonl": "the metrics and curves for MLflow, a line at a time",
    "mirror.json": "which tracking store has the run",
    "specdec.log": "what the run said, with the seconds of every stage",
}


class Key(NamedTuple):
    """A key of a YAML file: its dotted name, its value as written, and its comment on one line."""

    name: str
    value: str
    comment: str


def pages(guide: Path) -> dict[str, str]:
    """Return the text of each generated page by its name, with the glossary that the folder's page has."""
    reference = guide / "reference.md"
    text = reference.read_text(encoding="utf-8") if reference.is_file() else ""
    glossary = text.partition(_GLOSSARY[0])[2].partition(_GLOSSARY[1])[0].strip("\n")
    folder = Path(config_dir())
    said = subprocess.run([sys.executable, "-m", "specdec"], capture_output=True, text=True, check=True).stdout
    commands = [f"- {line.strip()}" for line in said.splitlines() if line.startswith("  ")]
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        group = path.parent.relative_to(folder).as_posix()
        if group not in _OVERLAYS and group.partition("/")[0] != "hydra":
            groups.setdefault(group, []).append(path)
    tables: list[str] = []
    for group, paths in groups.items():  # the roots of the commands first
        names = ", ".join(f"`{path.stem}`" for path in paths)
        heading = "### The commands' own keys" if group == "." else f"### `{group}`"
        tables += [heading, f"Files: {names}.", markdown(_key_rows(group, paths))]
    overlays: list[str] = []
    for group in _OVERLAYS:  # the first sentence of the comment that opens each file
        rows = []
        for path in sorted((folder / group).glob("*.yaml")):
            opening = re.match(r"(?:#.*\n)*", path.read_text(encoding="utf-8"))
            lines = [line.lstrip("# ") for line in (opening[0] if opening else "").splitlines() if line != _GLOBAL]
            first = re.split(r"(?<=[.?])(?<!et al\.) ", " ".join(lines))[0]
            rows.append({"file": f"`{path.stem}`", "what it is": first})
        overlays += [f"### `+{group}=`", markdown(rows)]
    blocks = [
        "# Reference",
        f"Commands, keys, files and exit codes. `{COMMAND}` makes this page from the code and from `conf/`; "
        "only the glossary at its end is written by hand.",
        "## Commands",
        "\n".join(commands),
        "## Keys",
        "`KEY=VALUE` sets a value; `GROUP=FILE` chooses a file of a group, `+GROUP=FILE` where the group has no "
        "default. `--help` after a command shows the keys of your choice. Long values are cut here; `name`, which "
        "every file has, is left out.",
        *tables,
        "## Overlays",
        "Files of choices, which have no keys of their own.",
        *overlays,
        "## Files of a run",
        "All in `outputs/DAY/TIME/`; some only where the run did what they tell of. "
        "`specdec.analysis.pages.run_page.write_run(folder)` makes report, summary, account, figures and trace again "
        "from the others, without a model.",
        markdown([{"file": f"`{name}`", "what it holds": what} for name, what in RUN_FILES.items()]),
        "## Exit codes",
        markdown([{"code": code, "meaning": meaning} for code, meaning in EXIT_CODES.items()]),
        "## Glossary",
        "\n".join((_GLOSSARY[0], glossary, _GLOSSARY[1])),
    ]
    return {"measurements.md": measurements_page(), "reference.md": "\n\n".join(blocks) + "\n"}


def keys_of(text: str) -> list[Key]:
    """Return the keys of a YAML file in their order, without Hydra's own.

    Comment lines between two keys continue the comment of the first. They belong to the second where the first has no
    comment, or where they begin with a capital letter and the comment of the first does not end with a full stop.
    """
    lines, document = text.splitlines(), yaml.compose(text)
    if not isinstance(document, yaml.MappingNode):
        return []
    shown = _named(document, most=_MOST_KEYS)
    named = [entry for entry in shown if entry[0].partition(".")[0] not in ("defaults", "hydra")]
    starts = sorted(key.start_mark.line for _, key, _ in _named(document)) + [len(lines)]
    keys, above = [], ""
    for name, key, value in named:
        block = isinstance(value, yaml.MappingNode) and not value.flow_style
        last = key.start_mark.line if block else value.end_mark.line - (value.end_mark.column == 0)
        own = _comment(lines[last][value.end_mark.column if value.end_mark.line == last else 0 :])
        following = next((line for line in starts if line > last), len(lines))
        below = " ".join(filter(None, (_comment(line) for line in lines[last + 1 : following])))
        handed_on = below if not own or (below[:1].isupper() and not own.endswith(".")) else ""
        comment = own if handed_on else f"{own} {below}".strip()
        expanded = block and len(value.value) <= _MOST_KEYS
        written = "{...}" if block else " ".join(text[value.start_mark.index : value.end_mark.index].split())
        if not expanded or comment:  # of a mapping that is shown key by key only its comment has to be told
            keys.append(Key(name, written, ". ".join(filter(None, (comment, above)))))
        above = handed_on
    return keys


def _named(node: yaml.MappingNode, prefix: str = "", most: float = inf) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Yield the dotted name, key and value of each key; of blocks with at most `most` keys, those below it too."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        yield name, key, value
        if isinstance(value, yaml.MappingNode) and not value.flow_style and len(value.value) <= most:
            yield from _named(value, f"{name}.", most)


def _comment(line: str) -> str:
    match = re.search(r"(?:^|\s)#\s*(.*)", line)
    return match[1].strip() if match else ""


def _key_rows(group: str, paths: Sequence[Path]) -> Table:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    keys = {stem: keys_of(text) for stem, text in texts.items()}
    rows: dict[tuple[str, str], dict[str, str]] = {}  # (key, comment): file -> value
    for stem, text in texts.items():
        extended = [base for base in (yaml.safe_load(text) or {}).get("defaults", ()) if base in list(texts)]
        known = {key.name for base in extended for key in keys[base]}
        prefix = "" if group == "." or text.startswith(_GLOBAL) else _PLACES.get(group, f"{group}.")
        for key in keys[stem]:
            only_another_value = key.name in known and not key.comment
            if key.name != "name" and not only_another_value:
                rows.setdefault((f"`{prefix}{key.name}`", key.comment), {})[stem] = key.value
    table = []
    for (name, comment), values in rows.items():
        cut = (value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…" for value in values.values())
        distinct = list(dict.fromkeys(cut))
        shown = " or ".join(f"`{value}`" for value in distinct[:3]) + (" or others" if len(distinct) > 3 else "")
        row = {"key": name, "value": shown, "meaning": comment}
        if len(paths) > 1:
            lacking = [stem for stem in texts if stem not in values]
            all_but = f"all but {', '.join(lacking)}" if len(lacking) <= 2 < len(texts) - 2 else ", ".join(values)
            row["in"] = all_but if lacking else "all"
        table.append(row)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, and the pictures if a run's folder is named; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Make the generated pages of the guide again.")
    about = "folder of a finished run, whose figures become the guide's pictures"
    parser.add_argument("run", type=Path, nargs="?", help=about)
    run = parser.parse_args(arguments).run
    try:
        notebooks = Path(config_dir()).parent / "notebooks"
        if not notebooks.is_dir():
            where = f"{notebooks} is missing; run `{COMMAND}` in a clone of the repository."
            raise UsageError(f"There is no guide to renew: {where}")
        guide = notebooks / "guide"
        guide.mkdir(exist_ok=True)
        for picture, name in PICTURES.items() if run is not None else ():
            source = run / "figures" / name
            if not source.is_file():
                raise UsageError(f"{source} is missing: name the folder of a finished run, as outputs/DAY/TIME.")
            (guide / "pictures").mkdir(exist_ok=True)
            with Image.open(source) as figure:  # a palette of colours takes a third of the bytes
                figure.convert("RGB").quantize(256).save(guide / "pictures" / picture, optimize=True)
        for name, text in pages(guide).items():
            (guide / name).write_text(text, encoding="utf-8")
            print(f"Wrote {guide / name}.")
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
