# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Could we have known before serving?
#
# A prediction is worth what it says about prompts that it has not seen. Every model of acceptance is fitted on one half
# of the prompts at the largest $\gamma$ and predicts tokens per round for every $\gamma$ on the other half. Replay
# follows the drafter along the very texts that are predicted, so it has nothing left to guess: it stands apart and is
# not ranked. And where `specdec.advise` had spoken before the run, its
# speedups stand beside the measured ones. The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.acceptance.model_sections import gamma_choice, model_sections
from specdec.analysis.pages import notebook
from specdec.analysis.research.prediction_results import prediction_families, prediction_results

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids, or folders of runs, instead of those of the overlay

# %% [markdown]
# ## Which model holds, and where
#
# Simulated drafters, the drafters that come along on the target that comes along, and look-up in books: texts whose
# accepted length is known at every position, measured once by a benchmark. The capped geometric takes the share of
# positions whose token the drafter would have guessed; *stretches of the text* (theory.md 5.7) reads nothing but the
# rounds at the largest $\gamma$. Greedy answers of a small model often end in loops of an exact period, which no model
# here knows. The second table is of simulated texts that differ in length and acceptance, both together too.

# %%
notebook.show(prediction_results(), prediction_families())

# %% [markdown]
# ## Tokens per round on prompts not seen
#
# The runs in `chosen`; without any, the newest run of every drafter of the overlay `notebooks`, or, without such
# runs, of your own.

# %%
runs = notebook.own_runs(tracking_uri, experiment, chosen)
predictions = [model_sections(run)[-1] for run in runs]
for run, prediction in zip(runs, predictions, strict=True):
    notebook.show(prediction, heading=run.title)

# %% [markdown]
# ## The best gamma, foretold and measured
#
# A model's speedup is its tokens per round over $1+\gamma c$: what the drafter costs is known beforehand, what
# verifying several tokens costs is not. The formula knows the alpha of the target's own text; acceptance by position
# is fitted to one half of the prompts and foretells the other. Advice measures the calls too; `python -m
# specdec.advise` with the same settings, run before the overlay, adds it.

# %%
choices = [gamma_choice(run) for run in runs]
notebook.show(*choices)

# %% [markdown]
# ## Answer

# %%
Markdown(f"{notebook.answers(runs, predictions)}\n\n{notebook.answers(runs, choices)}")
