"""The flags of llama.cpp's `llama-server` for speculative decoding, as llama.cpp 0.5.0 reads them.

From docs/speculative.md, tools/server/README.md and common/arg.cpp at its commit 0c1e57098 (that of llama-cpp-python
0.3.36), November 2026. `--draft-max` and `--draft-min` of earlier versions are gone there. The server verifies chains
only, and reads GGUF files, which its convert_hf_to_gguf.py writes.
"""

import shlex

from .measured_drafter import Configuration, Measured, unreadable

ENGINE = "llama.cpp 0.5.0"
TARGET, DRAFT = "target.gguf", "draft.gguf"
CONVERTED = "convert_hf_to_gguf.py, of llama.cpp, reads folders: download a hub id first."
EAGLE = {  # format: the type of speculation that reads it
    "EAGLE-3": "draft-eagle3",
    "speculators eagle3": "draft-eagle3",
    "DFlash": "draft-dflash",
    "DSpark": "draft-dspark",
}
CONFIDENCE = "It ends a draft at a token that is less likely than this; the product over the draft was measured."
SAMPLED = "It judges a sampled draft by whether the target draws the same token: expect fewer accepted."
REASONS = {
    "suffix": "No look-up by the longest match: it looks up n-grams of one length, which +drafter=ngram measures.",
    "retrieval": "No look-up in a text of one's own.",
    "parallel": "No draft model that drafts all tokens in one call over mask tokens.",
    "medusa": "No Medusa heads.",
    "mlp_speculator": "No MLP speculators.",
    "spec_tree": "No trees: chains of one draft model only, which +drafter=small_model measures.",
}


def llama_cpp(measured: Measured) -> Configuration:
    """Return the flags of llama.cpp's server for the drafter, or why there are none."""
    name, remarks = measured.name, []
    draft, options = "", []  # folder or hub id of the draft model, and options of its conversion
    if why := REASONS.get(name) or unreadable(measured, EAGLE if name == "eagle" else None):
        return Configuration(ENGINE, remarks=(why,))
    if name == "ngram":
        longest, shortest = measured.match_lengths
        flags = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(longest)]
        flags += ["--spec-ngram-simple-size-m", str(measured.depth)]
        remarks.append(
            f"It looks up one match length and takes the latest match; {longest} down to {shortest} were measured."
            if shortest < longest
            else "It takes the latest match."
        )
    elif name == "mtp":
        flags = ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(measured.depth)]
        remarks.append("Its converter keeps the MTP weights of some families only, Qwen3.5 among them.")
    elif name == "eagle":
        flags = ["--spec-type", EAGLE[measured.format], "--spec-draft-n-max", str(measured.depth)]
        draft, options = measured.drafting(), ["--target-model-dir", measured.served]
    else:
        key = "drafter.model"
        if name == "adaptive":
            if measured.value("drafter.of.name") != "small_model" or measured.value("drafter.rule") != "confidence":
                why = "Only a draft model ends its draft by its own confidence there."
                return Configuration(ENGINE, remarks=(why,))
            key = "drafter.of.model"
        if measured.value(key.replace("model", "translate")) is True:
            return Configuration(ENGINE, remarks=("No draft model with another tokenizer than the target's.",))
        flags = ["--spec-type", "draft-simple", "--spec-draft-n-max", str(measured.depth)]
        draft = measured.drafting(key)
        if name == "adaptive":
            flags += ["--spec-draft-p-min", str(measured.value("drafter.threshold"))]
            remarks.append(CONFIDENCE)
        if measured.sampled:
            remarks.append(SAMPLED)
    before = [_convert(measured.served, TARGET)]
    if draft:
        before.append(_convert(draft, DRAFT, *options))
        flags = ["-md", DRAFT, *flags]
    command = shlex.join(["llama-server", "-m", TARGET, *flags])
    return Configuration(ENGINE, command, tuple(before), (CONVERTED, *remarks, *measured.chains_only("It")))


def _convert(model: str, file: str, *options: str) -> str:
    return shlex.join(["python", "convert_hf_to_gguf.py", model, *options, "--outfile", file])
