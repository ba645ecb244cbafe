import sys
from pathlib import Path

import pytest

from specdec.text.python_sources import (
    PythonCorpusConfig,
    build_corpus,
    held_out_modules,
    held_out_topics,
    is_held_out,
    module_name,
    read_python_files,
    shingles,
)

HELD = "\n".join(f"def wrapped_line_{i}(text, width):\n    return text[{i}:width]\n" for i in range(30))
OTHER = "\n".join(f"class Other{i}:\n    name = 'other {i}'\n" for i in range(30))


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_copies_of_a_held_out_module_never_reach_training(tmp_path, corpus_config):
    stdlib = plant(
        tmp_path / "lib",
        {
            "textwrap.py": HELD,
            "zipfile/__init__.py": OTHER.replace("Other", "Zip"),
            "zipfile/_path.py": OTHER.replace("Other", "Path"),
            "test_textwrap.py": OTHER.replace("Other", "Case"),
            "test/test_textwrap.py": HELD,
            "other.py": OTHER,
        },
    )
    packages = plant(
        tmp_path / "site",
        {
            "pkg/_vendor/textwrap.py": HELD,
            "pkg/compat/renamed.py": OTHER.replace("Other", "Extra") + HELD,
            "pkg/textwrap.py": "\n".join(f"unrelated_{i} = {'x' * i!r}" for i in range(60)),
            "pkg/old/textwrap.py": "\n".join(f"another_name_{i} = some_call()" for i in range(60)) + "\n" + HELD[:400],
            "pkg/copy_of_other.py": OTHER,
        },
    )
    config = PythonCorpusConfig(**{**corpus_config.__dict__, "packages": {"pkg": 100_000, "absent": 10}})
    topics = {"strings": "held-out topic\n" * 5, "lists": "\n".join(f"line {i} of a topic" for i in range(9))}
    corpus = build_corpus(config, stdlib=stdlib, packages=packages, topics=topics)

    kept = {f"{d.source}:{d.name}" for d in corpus.training}
    assert kept == {"stdlib:other.py", "pydoc_data:lists", "pkg:textwrap.py"}
    assert {f"{d.source}:{d.name}" for d in corpus.heldout} == {
        "stdlib:textwrap.py", "stdlib:zipfile/__init__.py", "stdlib:zipfile/_path.py", "pydoc_data:strings",
    }  # fmt: skip
    reasons = {d["file"]: d["reason"] for d in corpus.manifest["dropped_for_the_hold_out"]}
    assert reasons == {
        "stdlib:test_textwrap.py": "test of a held-out module",
        "pkg:compat/renamed.py": "content of a held-out module",
        "pkg:old/textwrap.py": reasons["pkg:old/textwrap.py"],
    }
    assert corpus.manifest["packages_not_installed"] == ["absent"]
    assert str(tmp_path) not in str(corpus.manifest)


def test_unsuitable_files_are_dropped_and_counted(tmp_path, corpus_config):
    stdlib = plant(
        tmp_path / "lib",
        {
            "good.py": OTHER,
            "generated.py": "# This file was automatically generated, do not edit\n" + HELD,
            "long.py": "x = '" + "a" * 500 + "'\n",
            "table.py": "\n".join(f"{i}: {i * 7919}," for i in range(99)),
            "tiny.py": "x = 1\n",
        },
    )
    corpus = build_corpus(corpus_config, stdlib=stdlib, packages=tmp_path, topics={})
    assert [d.name for d in corpus.training] == ["good.py"]
    assert corpus.manifest["sources"]["stdlib"]["dropped"] == {
        "generated": 1, "table of numbers": 1, "too short": 1, "very long lines": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_the_running_interpreter_keeps_its_held_out_modules_out(corpus_config):
    corpus = build_corpus(corpus_config)
    modules = {module_name(d.name) for d in corpus.heldout if d.source == "stdlib"}
    assert len(modules) >= 25
    assert set(held_out_topics()) & {d.name for d in corpus.heldout}
    names = {d.name for d in corpus.training}
    assert not any(is_held_out(d, held_out_modules()) for d in corpus.training)
    assert not any(name.split("/")[-1].startswith("test_") for name in names if "shutil" in name)
    # Counted another way: whole long lines instead of shingles.
    held = {m.name: {ln for ln in m.text.splitlines() if len(ln) > 60} for m in corpus.heldout}
    for document in corpus.training:
        lines = {ln for ln in document.text.splitlines() if len(ln) > 60}
        for name, other in held.items():
            assert len(lines & other) <= max(5, 0.25 * len(other)), (document.name, name)


def test_shingles_ignore_indentation_and_blank_lines():
    assert shingles("a b\n\n  c\nd", 3) == shingles("    a  b\nc\n\td\n", 3)
    assert shingles("a\nb", 3) == set()


def test_undecodable_files_are_left_out(tmp_path):
    (tmp_path / "a.py").write_bytes(b"x = '\xff\xfe'\n")
    assert list(read_python_files(tmp_path, "pkg", [])) == []


def test_held_out_modules_exist_in_this_python():
    assert {module.split(".")[0] for module in held_out_modules()} <= set(sys.stdlib_module_names)
