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
# # On a real model, which drafter pays, and could one have known?
#
# SmolLM2-135M-Instruct answers chat prompts, word problems, code to complete and the tasks of Spec-Bench, greedily and
# at temperature 1. Which drafter makes it faster on which prompts? How far is the capped geometric
# $\Omega = (1-\alpha^{\gamma+1})/(1-\alpha)$ off at each draft length, and why? What would `specdec.advise`
# have said before? Does it pay that heads read the drafted tokens, and on which tree? And how many rows of n-grams
# pay? From committed measurements; what was not measured yet is said.
#
# The command that measures stands in `analysis/results/real_model.json` with each line, and all of them are run by
# `python -m pytest -n 0 -m benchmark tests/benchmarks/test_real_model.py`, which goes on where it was interrupted.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook
from specdec.analysis.research import real_model

# %% tags=["parameters"]
results = real_model.RESULT  # the measurements; a file of your own machine has the same form

# %% [markdown]
# ## Drafters, the formula, advice

# %%
sections = real_model.real_sections(results)
notebook.show(*sections)

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.firsts(*sections))
