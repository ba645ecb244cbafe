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
# # How close does the engine come to a GPU's limit?
#
# A call on one token cannot be faster than reading the weights once, and a round cannot be faster than its kernels: a
# draft of $\gamma$ steps and a call on $\gamma + 1$ tokens, each in a CUDA graph, with one wait of the host. With a
# known acceptance the speedup is then at most
#
# $$ \frac{\Omega}{v + \gamma c} $$
#
# `python tests/benchmarks/gpu.py --out analysis/results/gpu.json` measures all of it on a GPU, in less than nine
# minutes and with torch and transformers alone: a model of Llama-2-7B's shape and a drafter of 1.1 G parameters, random
# weights in bfloat16.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook
from specdec.analysis.research.gpu_limit import read_gpu

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # of the other notebooks; this one reads a file of the repository
experiment = "specdec"

# %%
measurement = read_gpu()
sections = measurement.sections()
Markdown(measurement.origin)

# %%
notebook.show(*sections)

# %% [markdown]
# ## Answer

# %%
Markdown(f"{notebook.firsts(*sections)}\n\n{measurement.origin}")
