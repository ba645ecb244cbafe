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
# # What is left of the speedup at batch size 2, 8, 32?
#
# A round of $B$ sequences is a call on $B (\gamma + 1)$ tokens where a plain step is a call on $B$. What the tokens of
# a call share, its overhead and the reading of weights, is what speculation spends at $B = 1$; a batch spends it
# first. So the speedup at equal batch is
#
# $$ \frac{E}{t(B (\gamma + 1)) / t(B) + \gamma\, c_B} $$
#
# with $E$ tokens per round and sequence, whatever $B$ is (theory.md 7.3). Here it is measured, drafter by drafter,
# beside that formula with timed calls on batches, and beside the cost model that was fitted to calls on one sequence
# and never saw a batch.
#
# `python -m specdec.run +experiment=batching` makes a run of your own (about five minutes); without one, this notebook
# shows the one that comes with the repository.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids or folders of studies, instead of the newest

# %% [markdown]
# ## Up to which batch each drafter pays

# %%
batches = notebook.study(tracking_uri, experiment, "batching", chosen)
notebook.show(*batches)

# %% [markdown]
# ## At which load should a server stop speculating?
#
# A server does not choose its batch: requests come at a rate, and the batch is what waits to be decoded. With
# little load it is small and speculation pays, under heavy load it is full. Here a server with continuous
# batching is *simulated* (theory.md 7.4), with recorded acceptance and with seconds of a step from a cost model
# or from the batches above; the load is the share of what it could serve without drafts. `python -m specdec.run
# +experiment=serving` makes a run of your own, with `study.batching=FOLDER` from the steps of yours; without one,
# this notebook shows those that come with the repository.

# %%
server = notebook.study(tracking_uri, experiment, "serving", chosen)
notebook.show(*server)

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.firsts(*batches, *server))
