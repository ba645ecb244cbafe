"""`python -m specdec.explain`: each format, and what it answers to bad input."""

import json
import runpy
import sys

import pytest

from specdec import explain, gate, report
from specdec.analysis.cost import load_forecast
from specdec.analysis.read import foreign, importers
from specdec.analysis.read.importers import LOAD_FORMATS, read_loads
from specdec.analysis.read.load_points import LoadFile
from specdec.errors import UsageError

HEAD = (
    "model,offered_concurrency,successful_requests,aggregate_output_tps,mean_itl_ms,mean_output_tokens,"
    "mean_prompt_tokens,mean_output_tokens_per_iteration,median_ttft_ms,p99_ttft_ms,num_drafts,num_accepted_tokens\n"
)
PLAIN = "".join(f"plain,{n},50,{90 * n},{10 + n},100,20,1.0,{30 + n},{60 + 9 * n},0,0\n" for n in (1, 2, 4, 8))
FAST = "".join(f"fast,{n},50,{180 * n},{(12 + n) / 2.5},100,20,2.5,{32 + n},{70 + 9 * n},1000,1400\n" for n in (1, 8))
BENCH = {
    "model_id": "M", "max_concurrency": 4, "completed": 10, "total_input_tokens": 500, "total_output_tokens": 2000,
    "output_throughput": 300.0, "mean_itl_ms": 20.0, "median_ttft_ms": 50.0,
}  # fmt: skip
SPECULATIVE = {
    "spec_decode_num_drafts": 800, "spec_decode_draft_tokens": 2400, "spec_decode_acceptance_rate": 50.0,
    "spec_decode_acceptance_length": 2.5,
}  # fmt: skip
MEANS = {"output_tokens_per_second": 300.0, "inter_token_latency_ms": 8.0, "output_tokens_per_iteration": 2.5}
METRICS = {"time_to_first_token_ms": {"successful": {"median": 50.0, "percentiles": {"p99": 90.0}}}}
METRICS |= {name: {"successful": {"mean": mean}} for name, mean in MEANS.items()}
GUIDELLM = {"benchmarks": [{"config": {"strategy": {"streams": 4}}, "metrics": METRICS}]}
AIPERF = {
    "input_config": {"loadgen": {"concurrency": 4}}, "request_count": {"unit": "requests", "avg": 10.0},
    "output_token_throughput": {"avg": 300.0}, "inter_chunk_latency": {"avg": 20.0},
    "time_to_first_token": {"avg": 60.0, "p50": 50.0, "p99": 90.0}, "output_sequence_length": {"avg": 200.0},
    "spec_decode_token_weighted_acceptance_length": {"avg": 2.5}, "inter_token_latency": {"avg": 8.5},
}  # fmt: skip
AIPERF_TABLE = """Metric,avg,min,max,p50,p99,std
Request Latency (ms),2000.00,1500.00,2500.00,2000.00,2490.00,10.00
Time to First Token (ms),60.00,50.00,90.00,50.00,90.00,1.00
Inter Token Latency (ms),8.00,7.00,9.00,8.00,8.90,0.10

Metric,Value
Request Throughput (requests/sec),2.03
Output Token Throughput (tokens/sec),300.00
Token-Weighted Acceptance Length,2.50
"""
LLAMA = '{"timings": {"prompt_n": 50, "prompt_ms": 50.0, "predicted_n": 201, "predicted_ms": 1600.0, "draft_n": 240, "draft_n_accepted": 120}}\n'  # noqa: E501
PAGE = """vllm:num_requests_running{model_name="M"} 3.0
vllm:num_requests_waiting{model_name="M"} 5.0
vllm:kv_cache_usage_perc{model_name="M"} 0.999
vllm:cache_config_info{block_size="16",num_gpu_blocks="60"} 1.0
"""


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """The intervals of a forecast are for its own tests."""
    monkeypatch.setattr(load_forecast, "DRAWS", 40)


@pytest.fixture
def written(tmp_path):
    """`written(name, text)` gives the path of a file."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("kind", "text", "step_ms", "pooled"),
    [
        ("guidellm", HEAD + FAST, 13.0, 2.4),  # 1 + 1,400 / 1,000
        ("guidellm", GUIDELLM, 20.0, None),  # 8 ms a token, 2.5 tokens a message
        ("guidellm", json.dumps(GUIDELLM).replace("output_tokens_per_it", "iter_tokens_per_it"), 20.0, 2.5),  # no first
        ("vllm_bench", BENCH | SPECULATIVE, 20.0, 2.5),  # the time between messages
        ("sglang_bench", BENCH | {"mean_itl_ms": 8.0, "accept_length": 2.5}, 20.0, 2.5),  # shared by 2.5 tokens
        ("aiperf", AIPERF, 20.0, 2.5),  # the time between messages
        ("aiperf", AIPERF_TABLE, 20.0, 2.5),  # 8 ms a token, 2.5 tokens a round
        ("llama_server", LLAMA * 2, 20.0, 2.5),  # 200 - 120 rounds in 1.6 s: the first token takes none
    ],
)
def test_a_step_is_a_round_in_every_format(written, kind, text, step_ms, pooled):
    path = written("result", text)
    assert [name for name, module in LOAD_FORMATS.items() if module.load_points(LoadFile.of(path))] == [kind]
    point = read_loads(path, kind).points.iloc[0]
    assert point["step_ms"] == pytest.approx(step_ms)
    assert point["pooled"] == pytest.approx(pooled) if pooled else point["by_request"] == 2.5
    assert point["in_flight"] in (1, 4) and point["throughput"] > 0


def test_a_format_is_one_new_file(written, tmp_path, monkeypatch):
    """The file is found by its name, and read as one of load tests and under its own kind."""
    code = "def load_points(file):\n    return [{'in_flight': 2, 'throughput': 9}] if file.text == 'own' else []\n"
    written("own_bench.py", "LOAD_FILES = 'Ours: own'\n" + code)
    monkeypatch.setattr(foreign, "__path__", [*foreign.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, f"{foreign.__name__}.own_bench", None)  # taken away again afterwards
    del sys.modules[f"{foreign.__name__}.own_bench"]
    read, commanded = (runpy.run_path(part.__file__, run_name=part.__name__) for part in (importers, report))
    assert {*commanded["KINDS"]} == {*report.KINDS, "own_bench"}
    for kind in ("load", "own_bench"):
        assert read["read_loads"](written("result", "own"), kind).points["throughput"].tolist() == [9]
        with pytest.raises(UsageError, match="is of no kind that .*begins with .*Ours: own"):
            read["read_loads"](written("result", "other"), kind)


def test_a_table_and_a_page_make_the_whole_account(in_process, written, tmp_path):
    table, page = written("table.csv", HEAD + PLAIN + FAST), written("page.txt", PAGE)
    ended = in_process(
        explain, str(table), str(page), "--gamma", "fast=3", "--context", "900", "--out", str(tmp_path / "report")
    )
    assert ended.code == 0, ended.error
    for said in (
        "2.40 and 2.50 tokens per round",
        "at most 3 requests running, 5 waiting, 99.9% of the KV cache in use",
        "from theory to the measured gain",
        "of 960 slots each holds 320",  # 60 blocks of 16 over 3
        "Fitted to the plain runs and the point at 1 in flight only",
        "fast: forecast with prompts of 900 tokens",
        "Nobody measured prompts of 900 tokens, but of 20: with one length of prompts attention is bounded",
        "with these prompts 1,200 each, so that 1 run",
    ):
        assert said in ended.output
    assert (tmp_path / "report" / "report.html").is_file()
    # The run folder has all of it, what was said of the servers too, and is no run with rounds.
    folder = tmp_path / "report" / "load_tests"
    again = in_process(explain, str(folder), "--context", "900")
    assert again.output == ended.output and "of 960 slots each holds 320" in again.output
    corrected = in_process(explain, str(folder), "--slots", "96", "--gamma", "fast=2").output
    assert "of 96 slots each holds 32" in corrected and "K = 2 " in corrected and "K = 3" not in corrected
    assert in_process(report, str(tmp_path / "report"), "--out", "shown").code == 0
    assert "of 960 slots each holds 320" in (tmp_path / "shown" / "report.md").read_text(encoding="utf-8")
    refused = in_process(gate, str(folder), str(folder))
    assert refused.code == 2 and "holds load tests, without rounds" in refused.error
    (folder / "plan.json").write_text('{"gauges": [{"walking": 1}], "facts": {}}', encoding="utf-8")
    assert "holds what no load test writes (TypeError): write it again" in in_process(explain, str(folder)).error
    assert "(no loads.parquet in it)" in in_process(explain, str(tmp_path)).error


def test_files_of_one_server_are_joined_by_name(in_process, written):
    files = [f"plain={written(f'{n}.json', BENCH | {'max_concurrency': n})}" for n in (1, 4, 16)]
    ended = in_process(explain, *files, f"fast={written('fast.json', BENCH | SPECULATIVE | {'max_concurrency': 1})}")
    assert ended.code == 0, ended.error
    assert "fast: forecast" in ended.output and "at 3.0 offered per round" in ended.output  # 2,400 over 800


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("hello\n", (), "is of no kind that specdec.explain knows"),
        ("hello\n", (), "profile_export_aiperf.csv: Metric,avg,min,max"),
        (HEAD + PLAIN.replace(",11,", ",-11,"), (), "mean_itl_ms is -11, which no clock"),
        (HEAD + PLAIN.replace(",90,", ",fast,", 1), (), "aggregate_output_tps is 'fast', and a number was expected"),
        (HEAD, (), "no line below its header"),
        (HEAD + PLAIN.replace(",90,", ",,", 1), (), "does not say the output tokens per second"),
        (HEAD + FAST + FAST.replace("fast", "other"), ("--gamma", "third=3"), "third is no speculative server of"),
        (HEAD + PLAIN + FAST, ("--gamma", "1"), "are more than gamma 1 + 1: correct --gamma"),
        (HEAD + FAST, ("--slots", "many"), "--slots many: give a number above 0"),
        (HEAD + PLAIN + FAST, ("--context", "0"), "--context is the tokens of a prompt: give a number above 0"),
        (PAGE, (), "alone has no load"),
    ],
)
def test_bad_input_is_one_sentence(in_process, written, text, options, sentence):
    ended = in_process(explain, str(written("file", text)), *options)
    assert ended.code == 2 and sentence in ended.error and "Traceback" not in ended.error
    missing = in_process(explain, "nowhere.csv")
    assert missing.code == 2 and missing.error == "specdec: The file nowhere.csv does not exist.\n"


def test_a_time_is_never_negative(in_process, written):
    """300 tokens a second of 200 tokens each, 4 in flight: 2.67 s, of which 199 tokens in rounds of 2.5 take 1.59 s."""
    bench = BENCH | SPECULATIVE | {"median_ttft_ms": 1200.0}
    ended = in_process(explain, str(written("fast.json", bench)))
    assert (
        "the rest 0%" in ended.output and "-" not in ended.output.partition("Seconds of a request")[2].split("\n")[-1]
    )
    assert "add up to 4.7% more than the whole request at most" in ended.output  # 1.592 + 1.2 s over 2.667
    ended = in_process(explain, f"plain={written('plain.json', BENCH)}", f"fast={written('fast.json', bench)}")
    assert "2.50 tokens per round become 1.00 times plain throughput: a longer step x 1.00" in ended.output


def test_a_missing_column_says_what_is_unknown(in_process, written):
    ended = in_process(explain, str(written("file", HEAD.replace("median_ttft_ms", "other") + FAST)))
    assert (
        ended.code == 0 and "Unknown for fast, because its files lack the column: waiting and prefill" in ended.output
    )
    assert "The gain and its forecast need plain runs at 3 loads" in ended.output
