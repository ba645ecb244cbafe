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
# # Is acceptance independent and the same everywhere?
#
# The capped geometric $\Omega = (1-\alpha^{\gamma+1})/(1-\alpha)$ takes every draft token to be accepted with one
# chance $\alpha$, whatever the prompt, the depth in the draft, and the rounds before. This notebook tests each of these
# for every drafter that was run, and compares models that give one of them up. Where an oracle is among them, which
# accepts by an independent coin, it shows what the tests say when the model is true. The answer is the last cell,
# written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.acceptance.model_sections import model_sections
from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids, or folders of runs, instead of those of the overlay

# %% [markdown]
# ## Tests and models, drafter by drafter
#
# The runs in `chosen`; without any, the newest run of every drafter of the overlay `notebooks`, or, without such
# runs, of your own. A p-value says whether a difference is there, the size
# beside it whether it matters. AIC compares models of the accepted counts; the figure has acceptance by depth.

# %%
runs = notebook.own_runs(tracking_uri, experiment, chosen)
sections = [model_sections(run) for run in runs]
for run, (tests, *models) in zip(runs, sections, strict=True):
    notebook.show(tests, *models[:1], heading=run.title)

# %% [markdown]
# ## Answer

# %%
coin = "\n\nThe oracle's coin is independent by construction: what rejects there does so by chance."
tossed = any(run.params["drafter.name"] == "oracle" for run in runs)
Markdown(notebook.answers(runs, [tests for tests, *_ in sections]) + coin * tossed)
