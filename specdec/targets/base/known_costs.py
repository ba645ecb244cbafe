"""The costs of calls by name: coefficients that were published (`conf/cost/`), or those that a run measured."""

from pathlib import Path
from statistics import median

import yaml

from specdec.config import config_dir, validated
from specdec.cost_model import SimulatedCost, fitted_calls, line_through, measured_cost
from specdec.errors import UsageError, near_misses


def load_cost(name: str) -> SimulatedCost:
    """Load the costs of a name: a YAML of `conf/cost/` without its ending; or a YAML of that form; or a run's output
    folder, or its `cost.json` or `calibration.json`. UsageError where there is no such name or file, or its content is
    wrong.
    """
    folder = Path(config_dir(), "cost")
    shipped, path = folder / f"{name}.yaml", Path(name).expanduser()
    if shipped.is_file():
        return _from_yaml(shipped)
    if path.is_dir() or path.name in ("cost.json", "calibration.json"):
        return cost_of_run(path if path.is_dir() else path.parent)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _from_yaml(path)
    names = sorted(each.stem for each in folder.glob("*.yaml"))
    raise UsageError(
        f"Bad value target.cost={name}: no such cost model.{near_misses(name, names)} Give one of {', '.join(names)}, "
        "a YAML file of that form, or the folder of a run."
    )


def cost_of_run(folder: Path) -> SimulatedCost:
    """Derive the costs of the machine and model that a run measured, from the files in its output folder.

    t(n, context) is the fit in `cost.json`. If the run made none (measurement.cost_contexts=[]), t(n) is the straight
    line through the median times of `calibration.json`, which knows one context only. The costs of drafts are a line
    through their median times by depth; the overhead is the rest of the run's rounds beside draft and verification.
    UsageError where the folder has no calibration, or it cannot be read.
    """
    # On demand: they bring pandas, scipy and matplotlib, a second and 100 MB that most targets start without.
    from specdec.analysis.busy_machine import undisturbed
    from specdec.analysis.read.runs import open_folder

    source = f"measured by the run in {folder}"
    try:
        run = open_folder(folder)
        calibration = run.calibration()
        drafts = {int(depth): median(times) for depth, times in calibration["drafts"].items() if times}
        if run.lacks("cost.json"):
            fixed, row = line_through({int(rows): median(times) for rows, times in calibration["calls"].items()})
            calls = {"fixed_s": fixed, "row_s": row}
            source += f", at {calibration['context']} cached tokens only"
        else:
            calls = fitted_calls(run.cost())
        overhead = 0.0  # of a run that was stopped before its first round
        if not run.lacks("rounds.parquet"):
            rounds = undisturbed(run.rounds())
            overhead = max(0.0, float((rounds["round_s"] - rounds["draft_s"] - rounds["verify_s"]).mean()))
        lookup, name = median(drafts.values()) if drafts else 0.0, folder.resolve().name
        return measured_cost(calls, drafts, name=name, source=source, lookup_s=lookup, overhead_s=overhead)
    except UsageError as error:
        raise UsageError(f"Bad value target.cost: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, OSError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"Bad value target.cost: the files in {folder} are not what a run writes ({what}): give the output folder "
            "of another run."
        ) from None


def _from_yaml(path: Path) -> SimulatedCost:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"Bad value target.cost: {path} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(values, dict):
        raise UsageError(f"Bad value target.cost: {path} holds no keys.")
    return validated(SimulatedCost, values, where="cost", source=f"the cost model {path.name}")
