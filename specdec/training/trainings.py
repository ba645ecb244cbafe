"""Every kind of training behind one function."""

from collections.abc import Mapping
from typing import Any

from specdec.config import validated
from specdec.progress import stage
from specdec.targets.base import targets
from specdec.training.loop import prepare, train
from specdec.training.recipes import RECIPES, StateTrainConfig
from specdec.training.student import FinishedTraining, Student
from specdec.training.students.eagle_student import EagleStudent
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.model_student import ModelStudent
from specdec.training.students.parallel_student import ParallelStudent
from specdec.training.students.unlikelihood_student import UnlikelihoodStudent

STUDENTS: Mapping[str, type[Student]] = {
    "recipe": ModelStudent,
    "heads": HeadStudent,
    "eagle": EagleStudent,
    "parallel": ParallelStudent,
    "unlikelihood": UnlikelihoodStudent,
}


def run(kind: str, values: Mapping[str, Any]) -> FinishedTraining | None:
    """Train what a recipe of the config group `kind` names, or go on training it; return None in all processes but the
    first. The values are the configuration, plain data from YAML. Raises UsageError: bad values, files or models, a
    checkpoint of another recipe; Interrupted: after a signal.
    """
    config = validated(RECIPES[kind], values, source="the configuration" if kind == "recipe" else "")
    if isinstance(config, StateTrainConfig):
        targets.config(config.target)
    prepare(config)
    with stage("Load", "model and text", bar=False):  # the hub draws the bars of its downloads
        student = STUDENTS[kind].open(config)
    return train(student)
