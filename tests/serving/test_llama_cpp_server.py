"""A llama.cpp server explained while it runs: a small one of our own, and where it is installed the real one."""

import json
from importlib.util import find_spec

import pytest
from fixtures.gguf_files import NO_SMOLLM2
from fixtures.local_servers import GAMMA, PLAIN_MS, PROMPT_MS, ROUND_MS, llama_cpp

from specdec import certify, explain, gate, report
from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.importers import convert, read_loads
from specdec.errors import EnvironmentFault, ModelLoadError, UsageError
from specdec.models.model_files import installed_smollm2
from specdec.serving.llama_cpp_server import PACKAGE, answer, start

ROUNDS = [2, 0, 4, 1]  # accepted, of 4: 2.75 tokens per round


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Text {number}."}) + "\n" for number in range(6)), encoding="utf-8")
    return str(path)


@pytest.fixture
def kept(in_process, prompts, tmp_path):
    """The files of the answers of three servers, and what was said of them."""
    with llama_cpp(None) as plain, llama_cpp(ROUNDS) as fast, llama_cpp([2, 0, 1, 0]) as worse:
        asked = ("--prompts", prompts, "--tokens", "45", "--requests", "6", "--out", str(tmp_path / "kept"))
        ended = in_process(explain, f"plain={plain}", f"fast={fast}", f"worse={worse}", *asked)
    assert ended.code == 0, ended.error
    return [str(tmp_path / "kept" / f"{name}.jsonl") for name in ("plain", "fast", "worse")], ended.output


def test_servers_are_asked_explained_imported_and_gated(in_process, kept, tmp_path):
    (_, fast, worse), said = kept
    plain_s, fast_s = (PROMPT_MS + 44 * PLAIN_MS) / 1e3, (PROMPT_MS + 16 * ROUND_MS) / 1e3
    assert f"2.75 tokens per round become {plain_s / fast_s:.2f} times plain throughput" in said
    assert "a longer step x 0.50 (a round takes 20 ms, a plain step 10)" in said
    assert "rounds 91%, the rest 0%" in said and "answers of worse are in" in said
    convert([("auto", fast), ("llama_server", worse)], ImportChoices(), tmp_path / "imported")
    same, other = (str(tmp_path / "imported" / name) for name in ("fast", "worse"))
    assert in_process(gate, same, same).code == 0
    ended = in_process(gate, same, other)
    assert ended.code == 8 and "Tokens per round: 2.750 before, 1.7" in ended.output
    assert in_process(report, "--import", "load", f"fast={fast}").code == 0
    assert "fast: a request's time" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_a_server_that_goes_away_leaves_the_answers_before_it(in_process, prompts, tmp_path, monkeypatch):
    asked = []

    def until_gone(*given):
        asked.append(given)
        if len(asked) > 5:
            raise EnvironmentFault("The server is gone.")
        return answer(*given)

    monkeypatch.setattr("specdec.serving.llama_cpp_server.answer", until_gone)
    with llama_cpp(None) as plain, llama_cpp(ROUNDS) as fast:
        servers = (f"plain={plain}", f"fast={fast}")
        ended = in_process(explain, *servers, "--prompts", prompts, "--tokens", "9", "--out", str(tmp_path))
    assert ended.code == 4 and "The server is gone." in ended.error
    assert [len((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("plain", "fast")] == [3, 2]


@pytest.mark.slow
def test_a_report_has_rounds_and_loads_and_the_speed_beside_plain_answers(in_process, kept, tmp_path):
    (plain, fast, _), _ = kept
    bench = {"max_concurrency": 4, "output_throughput": 300.0, "mean_itl_ms": 20.0}
    (tmp_path / "bench.json").write_text(json.dumps(bench), encoding="utf-8")
    imports = ("--import", "auto", fast, "--import", "auto", str(tmp_path / "bench.json"), "--baseline", plain)
    ended = in_process(report, *imports)
    assert ended.code == 0, ended.error
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Load tests" in text and "2.750" in text and "tokens per second of the baseline" in text


@pytest.mark.parametrize(("tokens", "rounds"), [(45, 16), (44, 16), (43, 15)])
def test_rounds_are_counted_though_tokens_are_silent_or_cut(tmp_path, tokens, rounds):
    path = tmp_path / "answers.jsonl"
    for mistake in ("", "silent"):
        with llama_cpp(ROUNDS, mistake) as address:
            path.write_text(json.dumps(answer(address, "Text", tokens)) + "\n", encoding="utf-8")
        point = read_loads(path).points.iloc[0]
        assert point["drafts"] == rounds and point["step_ms"] == pytest.approx(ROUND_MS, rel=1e-4)
        assert point["pooled"] == pytest.approx((tokens - 1) / rounds) and point["output_tokens"] == tokens


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("x=http://127.0.0.1:9", "--prompts", "PROMPTS"), "No server answers at http://127.0.0.1:9"),
        (("x=http://127.0.0.1:9",), "needs --prompts FILE"),
        (("x=http://127.0.0.1:9", "--prompts", "none.jsonl"), "file --prompts=none.jsonl does not exist"),
        (("http://127.0.0.1:9",), "needs a name of its own"),
        (("x=http://127.0.0.1:9", "--prompts", "PROMPTS", "--tokens", "1"), "--tokens 2 or more"),
    ],
)
def test_bad_addresses_are_one_sentence(in_process, prompts, arguments, sentence):
    ended = in_process(explain, *(prompts if word == "PROMPTS" else word for word in arguments))
    assert ended.code == 2 and sentence in ended.error, ended.error


def test_a_server_of_another_engine_is_said():
    with llama_cpp(None, "other") as address, pytest.raises(UsageError, match="not answer /completion with the timing"):
        answer(address, "Text", 4)


@pytest.mark.parametrize(
    ("timings", "sentence"),
    [
        ({"predicted_ms": [0.0, 30.0, 20.0]}, "the clock of steps runs backwards"),
        ({"draft_n_accepted": [0, 5, 6]}, "the counters of steps contradict themselves"),
        ({"predicted_n": [1, 3]}, "steps needs lists of one length"),
    ],
)
def test_counters_that_cannot_be_are_named(in_process, tmp_path, timings, sentence):
    steps = {"predicted_n": [1, 3, 5], "predicted_ms": [0.0, 20.0, 40.0], "draft_n": [0, 4, 8]}
    steps |= {"draft_n_accepted": [0, 1, 2]} | timings
    whole = {"prompt_n": 1, "prompt_ms": 9.0, "predicted_n": 5, "predicted_ms": 40.0, "draft_n": 8}
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"timings": whole | {"draft_n_accepted": 2}, "steps": steps}), encoding="utf-8")
    for command, arguments in ((explain, (str(path),)), (report, ("--import", "auto", str(path)))):
        ended = in_process(command, *arguments)
        assert ended.code == 2 and sentence in ended.error, ended.error


def test_what_cannot_be_served_is_one_sentence(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="--draft needs --gamma" if find_spec(PACKAGE) else "is not installed"):
        start(["smollm2", "--draft", "smollm2"])
    monkeypatch.setattr("specdec.serving.llama_cpp_server.PACKAGE", "json")
    with pytest.raises(UsageError, match=r"nowhere.gguf does not exist"):
        start(["nowhere.gguf"])
    monkeypatch.setattr("specdec.serving.llama_cpp_server.PACKAGE", "no_such_package")
    with pytest.raises(UsageError, match=r"pip install"):
        start(["smollm2"])


@pytest.fixture
def real(monkeypatch):
    """`real(name=options, ...)` starts servers of llama.cpp that serve SmolLM2, and gives `NAME=ADDRESS` of each."""
    if find_spec(PACKAGE) is None:
        pytest.skip(f"the server of llama.cpp is not installed: pip install {PACKAGE}")
    try:
        installed_smollm2()
    except ModelLoadError:
        pytest.skip(NO_SMOLLM2)
    servers = []

    def started(**options):
        usual = ("smollm2", "--port", "0", "--threads", "1")  # two threads wait for one another beside other work
        servers.extend(start([*usual, *more.split()]) for more in options.values())
        return [f"{name}={server.listening_address}" for name, server in zip(options, servers, strict=True)]

    yield started
    servers.clear()  # they end when nothing refers to them


@pytest.mark.slow
def test_the_real_server_is_explained(in_process, real, tmp_path):
    text = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": text}) + "\n", encoding="utf-8")
    asked = ("--prompts", str(tmp_path / "prompts.jsonl"), "--tokens", "48", "--out", str(tmp_path))
    ended = in_process(explain, *real(plain="", fast="--gamma 4"), *asked)
    assert ended.code == 0 and "times plain throughput: a longer step x" in ended.output, ended.error
    plain, fast = (json.loads((tmp_path / f"{name}.jsonl").read_text(encoding="utf-8")) for name in ("plain", "fast"))
    assert plain["tokens"] == fast["tokens"] and max(fast["steps"]["draft_n"]) <= GAMMA * len(fast["steps"]["draft_n"])


@pytest.mark.slow
def test_the_real_server_is_certified_and_gated(in_process, real, tmp_path):
    """It serves the weights that are opened here; asked again it is as good, and with other drafts worse."""
    words = ("red, blue, ", "one two three ", "tick tock ", "la la la, ", "yes no ", "a b c d ", "up, down, ", "1, 2, ")
    lines = "".join(json.dumps({"prompt": word * 5}) + "\n" for word in words)
    (tmp_path / "prompts.jsonl").write_text(lines, encoding="utf-8")
    asked = ("--prompts", str(tmp_path / "prompts.jsonl"), "--tokens", "16")
    servers = real(fast="--gamma 4 --draft smollm2", worse="--gamma 4")
    for folder, named in (("before", servers[:1]), ("after", servers)):
        ended = in_process(explain, *named, *asked, "--out", folder)
        assert ended.code == 0, ended.error
        files = [("llama_server", str(tmp_path / folder / f"{each.partition('=')[0]}.jsonl")) for each in named]
        convert(files, ImportChoices(), tmp_path / f"{folder}_runs")
    assert in_process(gate, "golden", "before_runs/fast", "--update").code == 0
    assert in_process(gate, "golden", "after_runs/fast").code == 0
    ended = in_process(gate, "golden", "after_runs/worse")
    assert ended.code == 8 and "Tokens per round: " in ended.output, ended.output
    few = ("server.texts=3", "server.prompts=1", "server.places=8", "certificate.outputs=2", "server.tolerance=0.5")
    ended = in_process(
        certify, "--server", servers[0].partition("=")[2], "target=smollm2", "measurement.max_new_tokens=12", *few
    )
    assert ended.code == 0, ended.output
    (path,) = tmp_path.rglob("certificate.json")
    certificate = json.loads(path.read_text(encoding="utf-8"))
    assert certificate["outcome"] == "not refuted" and certificate["environment"]["server"]["requests"] >= 5
