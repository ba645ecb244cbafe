"""What a wheel holds: configurations, analysis and pocket models below `specdec`, and nothing else at the top."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from safetensors import safe_open

from specdec.peers.base.contract import engines

ROOT = Path(__file__).resolve().parents[1]


def test_the_top_level_holds_source_alone():
    """The folders that runs write into the checkout, as `advice/` and `outputs/`, are ignored and never committed."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True).stdout
    tops = {name.split("/")[0] for name in listed.splitlines()}
    assert {top for top in tops if not top.startswith(".")} == {
        *("analysis", "conf", "notebooks", "specdec", "tests"),
        *("LICENSE", "README.md", "pyproject.toml", "requirements-headless.txt"),
    }


@pytest.mark.slow
def test_the_wheel_holds_everything_below_specdec(tmp_path):
    source = tmp_path / "source"  # building leaves files behind; they must not land in the checkout
    copy = ["git", "-C", str(ROOT), "checkout-index", "--all", f"--prefix={source}/"]
    subprocess.run(copy, check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("specdec_workbench-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"specdec"}
    assert {
        "specdec/conf/config.yaml",
        "specdec/conf/drafter/ngram.yaml",
        "specdec/conf/hydra/help/specdec.yaml",
        "specdec/analysis/account/gap_account.py",
        "specdec/pocket/target/model.safetensors",
        "specdec/pocket/target/tokenizer.json",
        "specdec/pocket/drafter/model.safetensors",
        "specdec/pocket/parallel/model.safetensors",
        "specdec/pocket/MODEL_CARD.md",
        "specdec/analysis/results/heads_ablation.json",
    } <= set(names)
    for yaml in (ROOT / "conf").rglob("*.yaml"):
        assert f"specdec/conf/{yaml.relative_to(ROOT / 'conf').as_posix()}" in names
    for module in (ROOT / "specdec").rglob("*.py"):
        assert f"specdec/{module.relative_to(ROOT / 'specdec').as_posix()}" in names


def test_extras_have_names_that_every_pip_knows():
    """pip before 23.3 finds no extra with an underscore in a package that setuptools built, and only warns."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert [canonicalize_name(name) for name in extras] == list(extras)
    assert {engines.get(name).extra for name in engines.all_names()} - {""} <= set(extras)


def test_a_headless_install_differs_in_mlflow_alone():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = (ROOT / "requirements-headless.txt").read_text(encoding="utf-8").splitlines()
    headless = [line.partition("#")[0].strip() for line in lines if not line.startswith("#")]
    assert {each.replace("mlflow-skinny", "mlflow") for each in headless} - set(wanted) == {
        "sqlalchemy>=2,<3",
        "alembic>=1.14,<2",
    }
    assert set(wanted) - set(headless) == {each for each in wanted if each.startswith("mlflow")}
    assert len(headless) == len(wanted) + 2


WEIGHTS = sorted((ROOT / "specdec" / "pocket").rglob("*.safetensors"))


@pytest.mark.parametrize("path", WEIGHTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_pocket_weights_are_bfloat16_alone(path):
    with safe_open(path, "np") as weights:
        names = set(weights.keys()) - {"d2t", "t2d"}  # the tokens that a feature drafter can draft are no weights
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
