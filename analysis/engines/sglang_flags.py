"""SGLang's flags for speculative decoding, as SGLang 0.5.23 reads them.

From that release's sglang/srt/arg_groups (fields/spec.py, speculative_hook.py), sglang/srt/speculative and
docs/advanced_features/speculative_decoding.md, November 2026. `--speculative-num-draft-tokens` counts the last token of
the text, the root of a draft, too.
"""

import shlex

from .measured_drafter import Configuration, Measured, unreadable

ENGINE = "SGLang 0.5.23"
EAGLE = {"EAGLE-1": "EAGLE", "EAGLE-3": "EAGLE3", "DFlash": "DFLASH", "DSpark": "DSPARK"}  # format: its algorithm
MTP = {"MTP module": "NEXTN"}
# Algorithms that draft a chain in one call: the option for its tokens, and how many more it counts for the root.
BLOCKS = {"DFLASH": ("--speculative-num-draft-tokens", 1), "DSPARK": ("--speculative-dspark-block-size", 0)}
TOPK = 4  # SGLang's own choice for Llama, where the tree that was measured does not say its branching
REASONS = {
    "parallel": "No draft model that drafts all tokens in one call.",
    "medusa": "No Medusa heads.",
    "mlp_speculator": "No MLP speculators.",
    "adaptive": "No draft model that ends its draft by its own confidence; --speculative-adaptive follows the share of "
    "accepted tokens.",
}
# Its look-up keeps the tokens of all requests in one trie.
SERVED = "SGLang looks up in all requests that it has served, and sets no bounds to the length of a match."
LIKELIEST = "SGLang drafts the likeliest tokens here; sampled ones were measured."


def sglang(measured: Measured) -> Configuration:
    """Return SGLang's flags for the drafter, or why there are none."""
    name, remarks = measured.name, []
    formats = {"eagle": EAGLE, "mtp": MTP}.get(name)
    if why := REASONS.get(name) or unreadable(measured, formats):
        return Configuration(ENGINE, remarks=(why,))
    if name in ("ngram", "suffix", "retrieval"):
        flags = ["NGRAM", "--speculative-num-draft-tokens", str(measured.nodes + 1)]
        if measured.branching is not None:
            flags += ["--speculative-ngram-max-bfs-breadth", str(measured.branching)]
        remarks.append(SERVED)
        if name == "retrieval":
            flags += ["--speculative-ngram-external-corpus-path", "CORPUS.jsonl"]
            flags += ["--speculative-ngram-external-sam-budget", str(measured.nodes)]
            remarks.append("CORPUS.jsonl is the text of drafter.corpus, a document per line, each line a JSON string.")
    elif formats is not None:
        algorithm = formats[measured.format]
        path = [] if measured.in_target else ["--speculative-draft-model-path", measured.drafting()]
        flags = [algorithm, *path]
        if algorithm in BLOCKS:
            option, root = BLOCKS[algorithm]
            flags += [option, str(measured.depth + root)]
            remarks += measured.chains_only(algorithm)
        else:
            flags += _tree(measured)
            if measured.block:
                flags.append("--speculative-use-block-verification")
            elif measured.sampled and measured.chain:
                flags.append("--speculative-use-rejection-sampling")
            elif measured.sampled:
                remarks.append(LIKELIEST)
    else:
        models = measured.value("drafter.models")
        if name == "spec_tree" and (not isinstance(models, list) or len(models) != 1):
            return Configuration(ENGINE, remarks=("Trees of one draft model only, and several were measured.",))
        if measured.value("drafter.translate") is True:
            return Configuration(ENGINE, remarks=("No draft model with another tokenizer than the target's.",))
        model = measured.drafting("drafter.models" if name == "spec_tree" else "drafter.model")
        flags = ["STANDALONE", "--speculative-draft-model-path", model, *_tree(measured)]
        if measured.sampled:
            remarks.append(LIKELIEST)
    serve = ["python", "-m", "sglang.launch_server", "--model-path", measured.served, "--speculative-algorithm"]
    return Configuration(ENGINE, shlex.join([*serve, *flags]), remarks=tuple(remarks))


def _tree(measured: Measured) -> list[str]:
    breadth = 1 if measured.chain else measured.branching or TOPK
    return [
        *("--speculative-num-steps", str(measured.depth)),
        *("--speculative-eagle-topk", str(breadth)),
        *("--speculative-num-draft-tokens", str(measured.nodes + 1)),
    ]
