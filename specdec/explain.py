"""`python -m specdec.explain FILE...`: why a server does not gain from speculation: the account of its load tests, and
the load at which to switch it off.

No Hydra task: nothing is configured, nothing is run. Imports stay light, so `--help` and a bad option answer at once.
"""

import argparse
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from specdec.commands.plain import OneSentence, told_faults
from specdec.errors import UsageError

FACTS = {  # option: (of the account's facts, help)
    "gamma": ("gamma", "draft tokens per round, where the files do not say them"),
    "slots": ("slots", "token slots of the KV cache with the drafter loaded, as the engine logs them"),
    "held": ("held", "slots that a request holds (prompt, half of the output, draft)"),
    "state-slots": ("state", "slots of one copy of a recurrent state: the block size that vLLM logs for hybrid models"),
    "most-running": ("most_running", "requests that ran at once at most, as the engine's gauges show"),
}


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.explain",
        description="Explains load tests of a serving engine, plain and speculative: tokens per round, steps, waiting "
        "for memory; the gain at every load, factor by factor; and the forecast of the load at which to switch off.",
    )
    made.add_argument(
        "files",
        nargs="+",
        metavar="[NAME=]FILE",
        help="results of GuideLLM, vllm bench serve, SGLang's bench_serving, timings of llama-server, vLLM's page "
        "/metrics; NAME tells servers apart where files do not",
    )
    for option, (_, words) in FACTS.items():
        made.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="[NAME=]N",
            help=f"{words}; of all speculative servers, or of the one named",
        )
    made.add_argument("--out", type=Path, metavar="DIR", help="write report.html and report.md there, too")
    return made


def explained(arguments: Sequence[str]) -> str:
    """Return the account as Markdown, and write a report where that is asked for. UsageError for what the user can put
    right.
    """
    options = parser().parse_args(arguments)
    facts = {name: _values(option, vars(options)[option.replace("-", "_")]) for option, (name, _) in FACTS.items()}

    import pandas as pd

    from specdec.analysis.load.load_account import ServerFacts, explain
    from specdec.analysis.load.load_files import Gauges, read_loads
    from specdec.analysis.pages.html import Chapter, section_blocks, write_report

    points, gauges = [], []
    for name, file in (_named(given) for given in options.files):
        read = read_loads(Path(file))
        if isinstance(read, Gauges):
            gauges.append(read)
        else:
            points.append(read.assign(server=name) if name else read)
    if not points:
        raise UsageError("A server's page alone has no load: give the results of a load generator beside it.")
    sections = explain(pd.concat(points, ignore_index=True), gauges, ServerFacts(**facts))
    if options.out is not None:
        write_report(options.out, "A server under load, explained", [Chapter("Load tests", sections)])
    return "\n\n".join(block for section in sections for block in section_blocks(section, "##", ()))


def _named(given: str) -> tuple[str, str]:
    """Return the name and the path of a file: an equals sign within a path that exists belongs to the path."""
    name, sign, path = given.partition("=")
    return (name, path) if sign and "/" not in name and not Path(given).exists() else ("", given)


def _values(option: str, given: Sequence[str]) -> dict[str, float]:
    """Return the numbers of an option by server, "" for all. UsageError for what is no number above 0."""
    values = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = 0.0
        if not (values[name] > 0 and isfinite(values[name])) or (option == "gamma" and values[name] % 1):
            raise UsageError(f"--{option} {text}: give a number above 0, or NAME=NUMBER for one server.")
    return values


def main() -> None:
    """Run the command: the console entry point."""
    with told_faults():
        print(explained(sys.argv[1:]))


if __name__ == "__main__":
    main()
