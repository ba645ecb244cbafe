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
# of the prompts and predicts tokens per round for every $\gamma$ on the other half. Replay needs no fit: it follows
# the drafter along texts that the target wrote alone; under greedy decoding these are the texts that will be written,
# so it has nothing left to guess. And where `specdec.advise` had spoken before the run, its
# speedups stand beside the measured ones. The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.acceptance.gamma_choice import gamma_choice
from specdec.analysis.acceptance.model_sections import model_sections
from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"

# %% [markdown]
# ## Tokens per round on prompts not seen
#
# The newest run of every drafter of the overlay `notebooks`.

# %%
runs = notebook.overlay_runs(tracking_uri, experiment)
predictions = [model_sections(run, replicates=1000, refits=50)[-1] for run in runs]
for run, prediction in zip(runs, predictions, strict=True):
    notebook.show(prediction, heading=run.title)

# %% [markdown]
# ## The best gamma, foretold and measured
#
# A model's speedup is its tokens per round over $1+\gamma c$: what the drafter costs is known beforehand, what
# verifying several tokens costs is not. Advice measures that too; `python -m specdec.advise` with the same settings,
# run before the overlay, adds it.

# %%
choices = [gamma_choice(run) for run in runs]
notebook.show(*choices)

# %% [markdown]
# ## Answer

# %%
Markdown(f"{notebook.answers(runs, predictions)}\n\n{notebook.answers(runs, choices)}")
