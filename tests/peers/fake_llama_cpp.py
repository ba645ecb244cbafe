"""A stand-in for the modules of llama-cpp-python: `Llama` generates greedily with a transformers model."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import torch


class FakeLlama:
    """The part of `llama_cpp.Llama` that the peer uses. `models` has the model of each file by the file's name.

    Attributes:
        calls: what was done, in order: resets, draft models' proposals, closings.
    """

    models: dict = {}
    opened: list = []

    def __init__(self, path, draft_model=None, **options):
        self.name, self.draft_model, self.options = path.rpartition("/")[2], draft_model, options
        self.calls, self.closed = [], False
        FakeLlama.opened.append(self)

    def reset(self):
        self.calls.append("reset")

    def close(self):
        self.closed = True

    @torch.inference_mode()
    def generate(self, tokens, **sampling):
        self.calls.append(("generate", len(tokens), sampling))
        tokens = list(tokens)
        while True:
            if self.draft_model is not None:
                drafted = self.draft_model(np.array(tokens, dtype=np.intc))
                self.calls.append(("drafted", len(drafted)))
            logits = FakeLlama.models[self.name](torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
            yield tokens[-1]


class FakeLookup:
    def __init__(self, max_ngram_size, num_pred_tokens):
        self.asked = (max_ngram_size, num_pred_tokens)

    def __call__(self, tokens, /, **options):
        return tokens[: self.asked[1]]


def install(monkeypatch, models):
    """Put the stand-in where `import llama_cpp` finds it."""
    FakeLlama.models, FakeLlama.opened = models, []
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    for module in (package, speculative):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package.Llama, package.llama_supports_gpu_offload = FakeLlama, lambda: False
    package.llama_speculative = speculative
    speculative.LlamaPromptLookupDecoding = FakeLookup
    monkeypatch.setattr("specdec.peers.llama_cpp.LlamaCpp.version", "llama-cpp-python 0")
