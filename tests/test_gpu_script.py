"""The script that measures on a GPU, on toys: every section runs, and what it says adds up. Its times mean nothing."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "benchmarks" / "gpu.py"
# What a machine with torch and transformers need not have.
ABSENT = {"hydra", "omegaconf", "mlflow", "datasets", "pandas", "pydantic", "psutil", "scipy", "matplotlib", "rich"}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_script"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_script"]


@pytest.fixture(scope="module")
def bench(script):
    with torch.inference_mode():
        return script.Bench(torch.device("cpu"), script.TINY)


@pytest.mark.slow
def test_every_section_runs_and_the_figures_add_up(script, tmp_path):
    code = script.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "gpu.json"), "--commit", "c0ffee"])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: section.get("error", "done") for name, section in found["sections"].items()} == {
        name: "done" for name in script.SECTIONS
    }
    assert code == 0 and found["commit"] == "c0ffee" and found["measured"] is False
    assert all(section["complete"] for section in found["sections"].values())
    assert script.TOTAL_SECONDS < 9 * 60
    sections = found["sections"]
    text = sections["correctness"]["text"]
    assert text["same"] == text["tokens"], "float32 decodes the same text by both kinds of passes"
    for row in sections["calls"]["rows"]:
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
    target = sections["calls"]["models"]["target"]
    assert target["read_bytes"] == 4 * (target["parameters"] - 97 * 32)  # but for the embeddings, in float32
    for row in sections["oracle"]["rows"]:
        omega = sum(row["alpha"] ** depth for depth in range(row["gamma"] + 1))
        assert row["omega"] == pytest.approx(omega)
        assert row["formula"] == pytest.approx(omega / (row["v"] + row["gamma"] * row["c"]))
        assert 1 <= row["tokens_per_round"] <= row["gamma"] + 1
    assert {row["arm"] for row in sections["peers"]["rows"]} >= {"generate", "assisted generation", "ours"}


@torch.inference_mode()
def test_the_host_waits_once_in_a_round(script, bench):
    """Every reading of a tensor by the host is counted: where tokens are accepted it reads one, and nowhere else."""
    found = {}
    script.rounds(bench, found)
    assert {(row["shape"], row["how"], row["waits"]) for row in found["rows"]} == {
        (shape, how, 1) for shape in ("chain", "tree") for how in ("eager", "captured")
    }


@torch.inference_mode()
def test_a_round_of_a_tree_commits_what_plain_decoding_writes(script, bench):
    """Where the drafter is the target itself, and where a second choice is what the target wants."""
    plain = script.Rounds(bench, 2, script.EAGER)
    plain.plain_tokens(8)
    for width in (1, 2):
        bench.decoders["drafter"], kept = bench.decoders["target"], bench.decoders["drafter"]
        decoding = script.Rounds(bench, 2, script.EAGER, width)
        bench.decoders["drafter"] = kept
        for _ in range(4):
            decoding.round()
        assert decoding.context[:20] == plain.context[:20]
    second = script.Rounds(bench, 2, script.EAGER, 2)
    drafted = torch.tensor([3, 5, 7, 9])  # 3 and 5 after the root, 7 and 9 after 3
    assert second.accept(drafted, torch.tensor([5, 0, 8, 0, 0]), None) == ([1], [5, 8])
    assert second.accept(drafted, torch.tensor([3, 9, 0, 0, 6]), None) == ([0, 3], [3, 9, 6])
    assert second.accept(drafted, torch.tensor([4, 9, 0, 0, 6]), None) == ([], [4])
    assert second.accept(drafted, torch.tensor([4, 9, 0, 1, 6]), 2) == ([0, 2], [3, 7, 1])


def test_a_section_that_fails_leaves_the_others(script, tmp_path, monkeypatch):
    """Its error is kept as a sentence with what it had found, the file is there, and the exit code tells."""

    def fails(bench, found):
        found["rows"] = [1]
        raise RuntimeError("no\n kernel")

    def slow(bench, found):
        found["complete"] = False

    monkeypatch.setattr(script, "SECTIONS", {"one": (5.0, fails), "two": (5.0, slow), "three": (5.0, lambda *_: None)})
    out = tmp_path / "deep" / "gpu.json"
    assert script.main(["--device", "cpu", "--tiny", "--out", str(out)]) == 3
    sections = json.loads(out.read_text())["sections"]
    assert sections["one"]["error"] == "RuntimeError: no kernel" and sections["one"]["rows"] == [1]
    assert [each["status"] for each in sections.values()] == ["failed", "out of time", "done"]


def test_without_a_gpu_it_says_so(script, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2
    assert "No CUDA device" in capsys.readouterr().err


def test_it_needs_torch_and_transformers_alone():
    """What it imports, followed through the engine's modules: the machine with the GPU may have nothing else."""
    seen, waiting, foreign = set(), [SCRIPT], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        nodes = ast.parse(path.read_text()).body
        names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        for parts in (name.split(".") for name in names):
            if parts[0] != "specdec":
                foreign.add(parts[0])
                continue
            for place in (ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)):
                waiting += [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    assert len(seen) > 10 and "torch" in foreign
    assert not foreign & ABSENT, "the script has to run where these are not installed"
    brought = {"torch", "transformers", "filelock"}  # the last comes with the first
    assert foreign - set(sys.stdlib_module_names) == brought


@pytest.mark.gpu
def test_it_measures_on_a_gpu(script, tmp_path):
    """All sections on toys by CUDA graphs; the full run is the script itself."""
    out = tmp_path / "gpu.json"
    assert script.main(["--tiny", "--out", str(out)]) == 0, json.loads(out.read_text())["sections"]
    rows = json.loads(out.read_text())["sections"]["rounds"]["rows"]
    assert [row["waits"] for row in rows if row["how"] == "captured"] == [1, 1]
