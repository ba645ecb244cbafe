"""The serving configuration that a measurement recommends: no speculation, or flags of each engine to start from."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, nan

import numpy as np
import pandas as pd

from ..cost.load_forecast import PlainCurve, Speculating, Unknowns, forecast_once, held_slots, off_load
from ..sections import Section
from .llama_cpp_flags import llama_cpp
from .measured_drafter import POCKET, Alone, Configuration, Measured
from .sglang_flags import sglang
from .vllm_flags import vllm

TITLE = "To serve it"
SERVED = (  # the drafters that at least one engine has, or has something like
    *("adaptive", "eagle", "medusa", "mlp_speculator", "mtp", "ngram", "parallel", "retrieval"),
    *("small_model", "spec_tree", "suffix"),
)
NOT_SERVED = {  # drafter: why no engine offers it
    "blockwise": "the engines that had Medusa's heads judged them by the law of the target",
    "cascade": "none chooses between drafters by what their last rounds gave; llama.cpp takes a list in --spec-type, "
    "whose first match drafts",
    **dict.fromkeys(("bigram", "corpus_ngram", "unigram"), "none drafts from an n-gram model with its own law"),
    "early_exit": "none drafts with the first layers of the target",
    "grounded": "none has heads that read the drafted tokens, Hydra's included",
    "jacobi": "none has Jacobi decoding",
    "layer_skip": "none drafts with some layers of the target left out",
    "lookahead": "none has lookahead decoding",
    "mixed": "none fills rows from the target's own bigram; +drafter=ngram measures what they have",
    "model_bigram": "none tabulates the target's own bigram",
    "model_unigram": "none ranks the target's own embeddings",
    "recycling": "none has Token Recycling",
    "staged": "none speeds a draft model up by another drafter; +drafter=small_model measures what they have",
}
NO_METHOD = {  # drafter: why there is nothing to serve
    "none": "plain decoding drafts nothing",
    "oracle": "the oracle reads the answer beforehand",
    "recorded": "the drafts are those of a recording",
}
STARTING_POINT = (
    "A starting point: specdec measured this in its own loop{where}, not in these engines, where a call, a draft and a "
    "batch cost something else."
)
DEMONSTRATION = (
    "**A demonstration of the tool, evidence of nothing else**: the pocket models took part. Measure with your own, "
    "whose names belong where the commands say MODEL and DRAFT_MODEL."
)


@dataclass(frozen=True)
class Recommendation:
    """The answer to how the drafter should be served; `serving` in `summary.json` and `advice.json`."""

    verdict: str  # one sentence with the number behind it
    configurations: tuple[Configuration, ...] = ()  # of each engine; empty where speculation is off or not offered
    remarks: tuple[str, ...] = ()  # sentences about all of them
    load: str = ""  # up to how many requests at once it pays, and what memory does to that; empty where unknown

    def lines(self, said: bool = False) -> list[str]:
        """Return the verdict, what load leaves of it, and a line for each engine: what a terminal shows. A verdict that
        was `said` before is not repeated where commands follow.
        """
        hint = " Starting points, not measured there:" if any(each.command for each in self.configurations) else ""
        verdict = f"{TITLE}: {' '.join(filter(None, [self.verdict * (not (said and hint)), self.load]))}{hint}"
        return [verdict, *(each.line for each in self.configurations)]

    def section(self, title: str = TITLE) -> Section:
        """Return the section of a page: the verdict, what limits it, and each engine's commands as code."""
        text = [f"**{self.verdict}**", *filter(None, [self.load]), *self.remarks]
        for engine in self.configurations:
            form = f"**In the format of {engine.engine}.**" if engine.command else f"**{engine.engine}.**"
            text.append(" ".join([form, *engine.remarks]))
            if engine.command:
                text.append("\n".join(["```", *engine.before, engine.command, "```"]))
        return Section(title, tuple(text))


def recommend(depths: Iterable[Measured]) -> Recommendation:
    """Recommend how to serve the drafter, at the fastest of the `depths` whose interval is above 1."""
    every = list(depths)
    best = max(every, key=lambda each: (each.speedup.low > 1, each.speedup.estimate))
    name = best.name
    if name in NO_METHOD:
        return Recommendation(f"Nothing to serve: {NO_METHOD[name]}.")
    if best.simulated:
        return Recommendation("No recommendation: time was simulated by a cost model.")
    if best.params.get("target.name", "causal") != "causal":
        return Recommendation("No recommendation: no engine is known to speculate with such a target.")
    how = "is predicted to be" if best.predicted else "is"
    one_of = f", the {'best' if best.speedup.low > 1 else 'fastest'} of {len(every)} depths," if len(every) > 1 else ""
    figures = f"{name} with {best.shape}{one_of} {how} {best.speedup} times as fast as plain decoding"
    if not best.speedup.known:
        return Recommendation(f"No recommendation: {figures}, a speedup without an interval.")
    if not best.speedup.low > 1:
        unclear = not best.speedup.high <= 1 and best.speedup.estimate > 1
        unless = ", unless more prompts show that it is faster" if unclear else ""
        return Recommendation(f"Leave speculation off{unless}: {figures}.")
    if name not in SERVED:
        why = f": {NOT_SERVED[name]}" if name in NOT_SERVED else ""
        return Recommendation(f"No engine is known to offer {name}{why}. It would pay: {figures}.")
    configurations = vllm(best), sglang(best), llama_cpp(best)
    if not any(each.command for each in configurations):
        return Recommendation(f"No engine offers {name} as it was measured. It would pay: {figures}.", configurations)
    where = f" on {best.machine}" if best.machine else ""
    drafts = best.value("drafter.models")
    models = [best.value(key) for key in ("target.model", "drafter.model", "drafter.of.model")]
    models += drafts if isinstance(drafts, list) else []
    remarks = [DEMONSTRATION] if POCKET in models else []
    remarks.append(STARTING_POINT.format(where=where))
    batch = best.value("measurement.batch_size") or 1
    alone = "Measured with one sequence at a time: `measurement.batch_size=8` shows what a batch leaves of it."
    remarks.append(alone if batch == 1 else f"Measured with up to {batch} sequences at once.")
    if best.temperature:
        remarks.append(f"Measured at temperature {best.temperature:g}, which is a key of each request there.")
    if not best.lossless:
        remarks.append(
            f"`verifier={best.params.get('verifier.name')}` was measured, which changes the text; these commands "
            "verify without loss, so expect fewer tokens per round."
        )
    load = "" if best.alone is None else _under_load(best, best.alone)
    return Recommendation(f"Speculate: {figures}.", configurations, tuple(remarks), load)


def _under_load(best: Measured, alone: Alone) -> str:
    """Say up to how many requests at once the drafter pays, by the forecast of load tests (theory.md 7.5) from calls on
    one sequence: a step of B requests takes what a call on their tokens takes; half of a draft's cost grows with them.
    """
    sizes, prefill = sorted(alone.calls), alone.prompt / alone.output
    batches = 2.0 ** np.arange(max(np.log2(sizes[-1] / (1 + prefill)) + 1, 0) // 1)
    if len(batches) < 3:
        return (
            "For one request at a time: calls as wide as several need are timed by a run, which with "
            "measurement.server_slots=[WITHOUT,WITH] counts the memory of the server, too."
        )
    slots = best.value("measurement.server_slots") or (inf, inf)  # without and with the drafter loaded
    held = [held_slots(alone.prompt, alone.output, round(offered)) for offered in (0, alone.offered)]
    plainly, admits = (max(size / each, 1.0) for size, each in zip(slots, held, strict=True))
    steps = np.interp(batches * (1 + prefill), sizes, [alone.calls[size] for size in sizes])
    running = np.minimum(batches, plainly)
    plain = {"in_flight": batches, "step_ms": steps, "throughput": 1e3 * running / np.interp(running, batches, steps)}
    unknown = dict.fromkeys(("requests", "ttft_ms", "ttft_p99_ms"), nan)
    texts = {"prompt_tokens": alone.prompt, "output_tokens": alone.output}
    curve = PlainCurve(pd.DataFrame({**plain, **unknown, **texts}))
    step = alone.tokens * steps[0] / best.speedup.estimate
    at = Speculating(1.0, step, alone.tokens, alone.tokens, 0.0, nan, round(alone.offered), admits)
    # No request costs a step anything but its tokens: only one was there.
    off = off_load(pd.DataFrame({"in_flight": batches, "gain": forecast_once(curve, at, Unknowns(floor=1.0))["gain"]}))
    if isinf(off):
        said = f"it pays with up to {batches[-1]:.0f} requests at once, the most that they tell of"
    else:
        said = f"it pays with {f'up to {int(off)} requests at once' if off >= 2 else 'one request at a time only'}"
    memory = (
        "memory is taken to limit nothing (measurement.server_slots=[WITHOUT,WITH], the token slots of the server's KV "
        "cache without and with the drafter, counts it)"
    )
    if not isinf(admits):
        memory = f"memory admits {admits:.0f} requests with the drafter, {plainly:.0f} without"
    return f"By the times of calls on one sequence {said}; {memory}."
