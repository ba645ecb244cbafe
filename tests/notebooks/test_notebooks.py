"""Every notebook: its pair is equal, it holds no outputs, and it runs on a store and ends with an answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec.analysis.papers.paper_tables import COLUMNS

jupytext = pytest.importorskip("jupytext")
jupyter_client = pytest.importorskip("jupyter_client")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def paired(path: Path) -> Any:
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def test_there_is_a_notebook_for_every_script_and_the_other_way_round():
    assert NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} == {path.stem for path in FOLDER.glob("*.ipynb")}
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.stem}`" in index for path in NOTEBOOKS)


@each
def test_the_pair_is_equal_and_the_notebook_is_stripped(path):
    script, notebook = jupytext.read(path), paired(path)
    for cell, other in zip(script.cells, notebook.cells, strict=True):
        assert (cell.cell_type, cell.source) == (other.cell_type, other.source)
        assert cell.metadata.get("tags") == other.metadata.get("tags")
        assert other.cell_type != "code" or (other.outputs == [] and other.execution_count is None)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3" and "widgets" not in notebook.metadata


@each
def test_it_opens_with_a_question_and_is_thin(path):
    cells = paired(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.splitlines()[0].endswith("?")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert "def " not in code
    assert "class " not in code
    assert len(code.splitlines()) < 80


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One kernel for all notebooks, which imports once what they import."""
    manager = jupyter_client.KernelManager(kernel_name="python3")
    # It warns that its local sockets are not encrypted.
    manager.start_kernel(extra_arguments=["--log-level=ERROR"])
    yield manager
    manager.shutdown_kernel(now=True)


def executed(kernel: Any, path: Path, folder: Path, **parameters: Any) -> Any:
    """Return the notebook after a run in `folder`, with `parameters` set behind its parameters cell, and nothing else
    in the kernel.
    """
    notebook = jupytext.read(path)
    (tagged,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    assert all(f"{name} =" in notebook.cells[tagged].source for name in parameters)
    values = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    notebook.cells.insert(tagged + 1, nbformat.v4.new_code_cell(values))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\nimport os\nos.chdir({str(folder)!r})"))
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=600, startup_timeout=300)
    client.execute()
    client.kc.stop_channels()
    return notebook


def told(path: Path, store: Any) -> dict[str, str]:
    """Of the store's address and experiment, what this notebook's cell of parameters has a name for."""
    (parameters,) = [cell.source for cell in paired(path).cells if "parameters" in cell.metadata.get("tags", [])]
    return {name: value for name, value in vars(store).items() if f"{name} =" in parameters}


@pytest.fixture
def answered(kernel: Any, run_store: Any, tmp_path: Path) -> Callable[..., str]:
    """`answered(path, published_csv=...)` runs a notebook on the store and gives the words of its answer."""
    folder = tmp_path / "here"
    folder.mkdir()

    def run(path: Path, **parameters: str) -> str:
        notebook = executed(kernel, path, folder, **told(path, run_store), **parameters)
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "stream"]
        assert any("image/png" in output.get("data", {}) for output in outputs)
        (output,) = notebook.cells[-1].outputs
        answer = output.data["text/markdown"]
        assert len(answer.split()) >= 20
        assert list(folder.iterdir()) == []  # reading leaves nothing behind
        return answer

    return run


@pytest.fixture
def printed(tmp_path: Path) -> Callable[[list[str]], str]:
    """`printed(lines)` writes a file of printed values and gives its path."""

    def write(lines: list[str]) -> str:
        (tmp_path / "printed.csv").write_text(",".join(COLUMNS) + "\n" + "".join(lines), encoding="utf-8")
        return str(tmp_path / "printed.csv")

    return write


FORMULA, ALPHAS = (FOLDER / name for name in ("01_theory_and_measurement.py", "02_alpha_table.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path not in (FORMULA, ALPHAS)], ids=lambda path: path.stem
)
def test_it_runs_and_answers_in_words(answered, path):
    answered(path)


@pytest.mark.slow
def test_theory_and_measurement_with_printed_values_and_an_iid_drafter(answered, printed):
    """One printed row agrees and one cannot."""
    row = "x arXiv:2211.17192,Table 1,,,formula,,5,{},{},x,alpha=0.8; c=0\n"
    lines = [row.format("speedup_ideal", 3.69), row.format("operations_factor", 1.99)]
    words = answered(FORMULA, published_csv=printed(lines))
    assert "At each of 6 gammas the replay model lies within the interval" in words
    assert "0 of 1 rows of Table 1 agree with the formulas; not alpha 0.8 gamma 5" in words


@pytest.mark.slow
def test_the_alpha_table_beside_printed_rows(answered, printed):
    """Every alpha lies between 0 and 1."""
    row = "x arXiv:2211.17192,Table 3,A,{},task,{},,alpha,{},prob,\n"
    lines = [row.format("unigram", 0, 0.0), row.format("bigram", 0, 1.0), row.format("bigram", 1, 0.5)]
    words = answered(ALPHAS, published_csv=printed(lines))
    assert "**table on tokens, " in words
    assert "Temperature 0: unigram " in words and "Temperature 1: unigram " in words
    assert "4 of 4 rows rest on fewer than the protocol's 10,000 tokens" in words
    assert "**Printed, 3 rows of Table 3**" in words and "for 1 of 1 drafter." in words
    assert "4 of 4 rows of n-gram drafters lie within the range that the paper prints for its own" in words
