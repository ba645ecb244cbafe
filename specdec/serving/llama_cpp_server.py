"""A llama.cpp server: started here from the wheel that brings it, and asked for texts with the counters of every round.

    python -m specdec.serving.llama_cpp_server smollm2 --port 8080             # plain
    python -m specdec.serving.llama_cpp_server smollm2 --port 8081 --gamma 4   # with n-gram drafts of 4 tokens

What an answer says is read in `analysis/read/foreign/llama_server.py`.
"""

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specdec.commands.failures import OneSentence, told_faults
from specdec.errors import EnvironmentFault, UsageError
from specdec.models.model_files import SMOLLM2, check_gguf, installed_smollm2

PACKAGE = "xllamacpp"
COUNTERS = ("predicted_n", "predicted_ms", "draft_n", "draft_n_accepted")
"""The counters of a text that llama.cpp gives with every token, of which the last after each round are kept."""
_SILENCE_S = 600.0  # of a server, after which it counts as gone


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.serving.llama_cpp_server",
        description="Serves a GGUF file on 127.0.0.1 with the server of llama.cpp, until it is interrupted.",
    )
    made.add_argument("model", metavar="MODEL", help=f"a GGUF file, or {SMOLLM2}")
    made.add_argument("--port", type=int, default=8080, help="where it listens (8080; 0: a free one)")
    made.add_argument("--gamma", type=int, default=0, metavar="N", help="draft tokens per round at most (0: no drafts)")
    made.add_argument("--draft", metavar="MODEL", help="the GGUF file that drafts (n-grams of the text)")
    made.add_argument("--match", type=int, default=2, metavar="N", help="last tokens that an n-gram draft follows (2)")
    made.add_argument("--threads", type=int, metavar="N", help="of a call (llama.cpp's own choice)")
    made.add_argument("--context", type=int, default=2048, metavar="N", help="tokens of prompt and output (2048)")
    return made


def start(arguments: Sequence[str]) -> Any:
    """Start a server in this process and return it once it answers, at its `listening_address`; it ends when it is no
    longer referred to. UsageError for a package that is not installed, a file that is none, and bad options.
    """
    options = parser().parse_args(arguments)
    if find_spec(PACKAGE) is None:
        raise UsageError(f'The server of llama.cpp is not installed: pip install "{PACKAGE}>=2026.10".')
    if options.draft and options.gamma < 1:
        raise UsageError("--draft needs --gamma, the draft tokens per round, at least 1.")
    files = []
    for model in (options.model, *([options.draft] if options.draft else [])):
        files.append(installed_smollm2() if model == SMOLLM2 else model)
        if not Path(files[-1]).is_file():
            raise UsageError(f"The model file {model} does not exist: give a GGUF file, or {SMOLLM2}.")
        check_gguf(Path(files[-1]))

    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path, given.port, given.n_ctx, given.n_parallel = files[0], options.port, options.context, 1
    given.verbosity = 1
    if options.threads:
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = options.threads
    if options.gamma and options.draft:
        given.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        given.speculative.draft.mparams.path, given.speculative.draft.n_max = files[1], options.gamma
    elif options.gamma:
        given.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        given.speculative.ngram_simple.size_n = options.match
        given.speculative.ngram_simple.size_m = options.gamma
    return xllamacpp.Server(given)


def answer(address: str, prompt: str | Sequence[int], tokens: int) -> dict[str, Any]:
    """Let a llama.cpp server write the most probable text of at most so many tokens behind a prompt, text or ids;
    return `content`, its tokens, and `steps`, the `COUNTERS` after each round. No earlier prompt's cache is used, and
    nothing but `address`, such as `http://127.0.0.1:8080`, is asked, through no proxy. UsageError: no server of
    llama.cpp answers there; EnvironmentFault: it is gone before its answer ends.
    """
    asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "cache_prompt": False}
    asked |= {"stream": True, "timings_per_token": True, "return_tokens": True}
    try:
        place = urlsplit(address)
        connection = HTTPConnection(place.hostname or "", place.port or 80, timeout=_SILENCE_S)
        connection.connect()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"No server answers at {address} ({error}): start one there, or correct the address."
        ) from None
    try:
        body, kind = json.dumps(asked).encode(), {"Content-Type": "application/json"}
        connection.request("POST", f"{place.path.rstrip('/')}/completion", body, kind)
        lines = [line[5:] for line in connection.getresponse() if line.startswith(b"data:")]
    except (OSError, HTTPException) as error:
        raise EnvironmentFault(f"The server at {address} is gone before its answer ended ({error!r}).") from None
    finally:
        connection.close()
    try:
        events = [json.loads(line) for line in lines if line.strip() != b"[DONE]"]
        last, timings = events[-1], [event["timings"] for event in events]
        steps = {timing["predicted_ms"]: timing for timing in timings}.values()
        return {
            **{name: last[name] for name in ("model", "stop_type", "timings") if name in last},
            "content": "".join(event["content"] for event in events),
            "tokens": [token for event in events for token in event["tokens"]],
            "steps": {name: [step.get(name, 0) for step in steps] for name in COUNTERS},
        }
    except (ValueError, LookupError, TypeError):
        raise UsageError(
            f"{address} does not answer /completion with the timings of each token, as llama.cpp's server does: give "
            "the results of a load generator instead."
        ) from None


def main() -> None:
    """Run the command: serve until SIGINT or SIGTERM."""
    with told_faults():
        server = start(sys.argv[1:])
        print(f"llama.cpp serves on {server.listening_address}; end it with Ctrl-C.", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
