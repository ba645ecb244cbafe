"""`python -m specdec.explain FILE...`: why a server does not gain from speculation: the account of its load tests, and
the load at which to switch it off.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf, isfinite
from pathlib import Path

from specdec.analysis.read.facts import LOAD, LOAD_FOLDER
from specdec.commands.failures import OneSentence, told_faults
from specdec.errors import UsageError
from specdec.progress import stage
from specdec.text.writing import write_atomically

ADDRESS = "http://"  # begins an argument that is a server and no file
FACTS = {  # option: (of the account's facts, help)
    "gamma": ("gamma", "draft tokens per round, where the files do not say them"),
    "slots": (
        "slots",
        "token slots of the KV cache with the drafter loaded, as the engine logs them; for --context also those of the "
        "plain server, by its name",
    ),
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
    about = (
        "results of GuideLLM, vllm bench serve, SGLang's bench_serving or AIPerf, responses of llama-server, "
        f"vLLM's page /metrics, a folder {LOAD_FOLDER} that --out wrote; NAME tells servers apart where files do not; "
        "or http://HOST:PORT, a server of llama.cpp that runs"
    )
    made.add_argument("files", nargs="+", metavar="[NAME=]FILE", help=about)
    made.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines of prompts, for servers that run")
    made.add_argument("--requests", type=int, default=20, metavar="N", help="prompts that they are sent (20)")
    made.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens that they write at most (128)")
    for option, (_, words) in FACTS.items():
        about = f"{words}; of all speculative servers, or of the one named"
        made.add_argument(f"--{option}", action="append", default=[], metavar="[NAME=]N", help=about)
    about = "forecast for prompts of N tokens, too, longer or shorter than measured; may be repeated"
    made.add_argument("--context", action="append", type=float, default=[], metavar="N", help=about)
    written = f"write report.html, report.md and the run folder {LOAD_FOLDER} there, too"
    made.add_argument("--out", type=Path, metavar="DIR", help=written)
    return made


@told_faults()
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the account as Markdown, and write a report where that is asked for: the console entry point."""
    options = parser().parse_args(arguments)
    if not all(0 < context < inf for context in options.context):
        raise UsageError("--context is the tokens of a prompt: give a number above 0.")
    facts = {name: _values(option, vars(options)[option.replace("-", "_")]) for option, (name, _) in FACTS.items()}

    from specdec.analysis.account.load_account import explain
    from specdec.analysis.pages.html import Chapter, section_blocks, write_report
    from specdec.analysis.read.importers import read_together
    from specdec.analysis.read.load_points import ServerFacts, server_and_path

    named = [server_and_path(given) for given in options.files]
    addresses = {name: address for name, address in named if address.startswith(ADDRESS)}
    kept = _asked(addresses, options) if addresses else {}
    files = [(LOAD, name, str(kept[name]) if file.startswith(ADDRESS) else file) for name, file in named]
    tests = read_together(files, ServerFacts(**facts))
    sections = explain(tests, options.context)
    if options.out is not None:
        tests.write(options.out / LOAD_FOLDER, options.files)
        write_report(options.out, "A server under load, explained", [Chapter("Load tests", sections)])
    blocks = [block for section in sections for block in section_blocks(section, "##", ())]
    print(*blocks, *(f"The answers of {name} are in {path}." for name, path in kept.items()), sep="\n\n")


def _asked(addresses: Mapping[str, str], options: argparse.Namespace) -> dict[str, Path]:
    """Send the prompts to servers that run, each prompt to all of them before the next one, one request at a time, and
    return the files of their answers by name. UsageError for names or prompts that lack.
    """
    from specdec.serving.llama_cpp_server import answer
    from specdec.text.sources import read_file, user_turns, usual_prompt

    if "" in addresses or len(addresses) < sum(ADDRESS in given for given in options.files):
        raise UsageError(
            "A server that runs needs a name of its own: give plain=http://HOST:PORT fast=http://HOST:PORT."
        )
    if options.prompts is None:
        raise UsageError("A server that runs needs --prompts FILE, JSON lines with a prompt in each.")
    if options.requests < 1 or options.tokens < 2:
        raise UsageError("--requests is 1 or more, and --tokens 2 or more: the first token takes no round.")
    texts = []
    records = read_file(str(options.prompts), None, "--prompts")
    for where, number, record in islice(records.numbered, options.requests):
        field, value = usual_prompt(record, where)
        texts.append((str(number), str(user_turns(value, field, where)[0])))
    folder = options.out or Path()
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.jsonl" for name in addresses}
    lines = dict.fromkeys(addresses, "")
    with stage("Requests", total=len(texts), told=False) as under_way:
        for prompt, text in texts:
            for name, address in addresses.items():
                lines[name] += json.dumps({"id": prompt, **answer(address, text, options.tokens)}) + "\n"
                write_atomically(files[name], lines[name].encode())  # at once: a server may go away at the next one
            under_way.advance()
    return files


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


if __name__ == "__main__":
    main()
