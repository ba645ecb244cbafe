"""Tries which architectures of transformers can be decoded: each one with a causal head, as a random model in its
default configuration with tiny widths.

Windows, chunks and contexts are the default ones, but where `BESIDES` names `SCAN`. Run by hand: `python -m pytest -n 0
-m benchmark tests/benchmarks/test_architectures.py`, some ten minutes; with `-k llama4` only those lines of the table
are made again, with a date of their own. A line of `analysis/results/architectures.json` says how drafts that branch
are evaluated ("packed" or "rows"), around which lengths the model itself was compared, or why it is refused, or why no
tiny model could be made. What is served has decoded a text with chains and with trees, in float32, behind its windows
where these are short, token for token as plain forward passes do.
"""

import copy
import time
from collections.abc import Collection
from typing import Any

import pytest
import torch
from fixtures.decoding import decode
from fixtures.plain_laws import VOCABULARY, plain_greedy
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specdec.certification.greedy_identity import GREEDY, PROMPT, Scattered
from specdec.errors import ModelLoadError
from specdec.models.model_lengths import lengths_of
from specdec.targets.causal import Causal

pytestmark = pytest.mark.benchmark

KEY = "architecture"  # what names a line of the table
WIDTH, HEADS, LAYERS, HEAD = 32, 4, 2, 8
SCAN = 32  # tokens of a scan's chunk, or of a window, where comparing around the default ones takes minutes
SHORT = 600  # tokens; texts are decoded behind lengths of at most this


def sizes(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


# The usual keys of configurations that make a model large, and small values that fit together.
SMALL = (
    sizes(WIDTH, "hidden_size n_embd d_model dim hidden_dim word_embed_proj_dim embedding_size embed_dim emb_dim "
          "dim_model lru_width attention_hidden_size output_hidden_size input_embedding_size "
          "cross_attention_hidden_size")
    | sizes(WIDTH, "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner d_ff d_inner ffn_hidden_size "
            "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size intermediate_size_mlp "
            "dim_ff feed_forward_size expert_ffn_hidden_size dense_intermediate_size mlp_hidden_size")
    | sizes(LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers "
            "num_decoder_layers")
    | sizes(HEADS, "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads num_heads "
            "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads")
    | sizes(HEADS // 2, "num_key_value_heads kv_n_heads num_kv_heads num_global_key_value_heads "
            "swa_num_key_value_heads")
    | sizes(HEAD, "head_dim d_head attention_head_dim kv_channels dim_head global_head_dim v_head_dim swa_head_dim "
            "swa_v_head_dim qk_nope_head_dim qk_rope_head_dim q_lora_rank kv_lora_rank o_lora_rank rotary_dim "
            "index_head_dim")
    | sizes(VOCABULARY, "vocab_size decoder_vocab_size vocab_size_per_layer_input audio_vocab_size "
            "encoder_hash_byte_group_vocab pronunciation_vocab_size shape_vocab_size")
    | sizes(16, "hidden_size_per_layer_input pronunciation_embed_dim shape_embed_dim")
    | sizes(4, "num_experts n_routed_experts num_local_experts moe_num_experts num_moe_experts ffn_num_experts")
    | sizes(2, "num_experts_per_tok moe_topk moe_k moe_top_k num_selected_experts top_k_experts experts_per_token")
    | sizes(1, "n_group topk_group n_shared_experts first_k_dense_replace")
)  # fmt: skip
ZAMBA = dict(num_hidden_layers=3, layers_block_type=["linear_attention", "hybrid", "hybrid"])
# What the rule above does not reach.
BESIDES: dict[str, dict[str, Any]] = {
    "bamba": dict(mamba_n_heads=8, mamba_d_head=8, attn_layer_indices=[1]),
    "bigbird_pegasus": dict(attention_type="original_full"),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0)),
    "deepseek_v2": dict(topk_method="greedy", n_routed_experts=4, num_experts_per_tok=2),
    "dory": dict(num_hidden_layers=3, n_input_layers=1, n_recurrent_layers=1, n_output_layers=1),
    "dots1": dict(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1),
    "dots3_note_text": dict(swa_head_dim=2 * HEAD),
    "falcon_h1": dict(mamba_d_ssm=WIDTH, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=SCAN),
    "gemma3n_text": dict(num_hidden_layers=4, num_kv_shared_layers=2, intermediate_size=[WIDTH] * 4)
    | dict(layer_types=["sliding_attention", "full_attention"] * 2, activation_sparsity_pattern=[0.95, 0.0, 0.0, 0.0]),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], attention_layers=["global", "local"]),
    "granitemoehybrid": dict(mamba_n_heads=8, mamba_d_head=8, layer_types=["linear_attention", "full_attention"]),
    "hrm_text": dict(num_hidden_layers=2 * 2 * 4, num_layers_per_stack=2),
    "hunyuan_v1_dense": dict(head_dim=HEAD),
    "hunyuan_v1_moe": dict(head_dim=HEAD),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False),
    "kimi_linear": dict(layer_types=["linear_attention", "full_attention"], mlp_layer_types=["dense", "sparse"])
    | dict(linear_head_dim=8, linear_num_heads=4, num_key_value_heads=HEADS)
    | sizes(4, "num_local_experts num_experts")
    | sizes(2, "num_experts_per_tok num_experts_per_token")
    | sizes(1, "n_group topk_group num_expert_group"),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "longcat_flash": dict(qk_head_dim=2 * HEAD),
    "mamba2": dict(num_heads=8, head_dim=8, n_groups=1, state_size=8, chunk_size=SCAN),
    "minimax": dict(block_size=SCAN),
    "ministral": dict(head_dim=HEAD, num_key_value_heads=2),
    "nemotron_h": dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], mamba_num_heads=4)
    | dict(mamba_head_dim=16, n_groups=1, ssm_state_size=8, chunk_size=SCAN, moe_shared_expert_intermediate_size=16),
    "nemotron": dict(num_key_value_heads=HEADS),
    "qwen4_exp_text": dict(
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=HEAD, indexer_budget=64, indexer_compress_ratio=4
    ),
    "recurrent_gemma": dict(attention_window_size=2 * SCAN, num_hidden_layers=3),
    "reformer": dict(is_decoder=True),
    "xmod": dict(default_language="en_XX"),
    "zamba": ZAMBA,
    "zamba2": ZAMBA
    | dict(attention_hidden_size=2 * WIDTH, attention_head_dim=2 * HEAD)
    | dict(mamba_headdim=8, mamba_d_state=8, chunk_size=SCAN),
}
# No decoders by default.
for name in (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
).split():
    BESIDES[name] = BESIDES.get(name, {}) | dict(is_decoder=True)


def shrunk(config: Any) -> dict[str, Any]:
    """The values of a configuration with every size made small, and one layer of each kind or two of the only one."""
    from transformers import PreTrainedConfig

    values, small = config.to_dict(), dict[str, Any]()
    kinds = values.get("layer_types") or []
    once = list(dict.fromkeys(kinds))
    chosen = once if len(once) > 1 else once * 2
    for key, value in values.items():
        part = config.__dict__.get(key)
        if isinstance(part, PreTrainedConfig):
            small[key] = shrunk(part) | BESIDES.get(part.model_type, {})
        elif key == "per_layer_config":
            small[key] = {}
        elif key.endswith("token_id"):
            small[key] = None if key == "eos_token_id" or not isinstance(value, int) else min(value, 3)
        elif key in SMALL and isinstance(value, int) and not isinstance(value, bool) and value:
            small[key] = min(SMALL[key], value)
        elif kinds and isinstance(value, list) and len(value) == len(kinds):
            small[key] = [value[kinds.index(kind)] for kind in chosen]
        elif key not in ("model_type", "architectures", "transformers_version", "dtype", "_name_or_path"):
            small[key] = copy.deepcopy(value)
    if kinds:
        small |= {key: len(chosen) for key in ("num_hidden_layers", "n_layer") if key in small}
    if "kv_lora_rank" in small and "num_key_value_heads" in small:
        small["num_key_value_heads"] = HEADS  # latent attention has keys for every head
    return small


def tiny(model_type: str) -> Any:
    """A random model of an architecture in float32, whose logits are far enough apart."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind = CONFIG_MAPPING[model_type]
    values = shrunk(kind()) | BESIDES.get(model_type, {})
    config = kind(**values)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    if model_type == "xmod":
        model.set_default_language("en_XX")
    for weight in model.parameters():
        weight.mul_(5.0 if weight.dim() > 1 else 1.0)
    model(input_ids=torch.tensor([PROMPT]), use_cache=False)
    return model


def long_prompt(lengths: Collection[int]) -> tuple[int, ...]:
    """A prompt that reaches beyond those lengths that a text can be decoded behind at every call within seconds."""
    short = [length for length in lengths if length <= SHORT]
    return (
        PROMPT if not short else tuple((7 * place * place + 3 * place) % VOCABULARY for place in range(max(short) + 10))
    )


def in_words(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


@pytest.mark.parametrize("model_type", list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_an_architecture_is_served_as_plain_passes_say_or_refused(model_type, make_structure, log_figure):
    begin = time.perf_counter()
    try:
        model = tiny(model_type)
    except Exception as error:  # a configuration that the rule does not reach, or a package that is not here
        log_figure(architecture=model_type, outcome="not built", why=in_words(error))
        return
    made = time.perf_counter()
    try:
        target = Causal(model, GREEDY, name=model_type)
    except ModelLoadError as error:
        log_figure(architecture=model_type, outcome="refused", why=str(error))
        return
    took = round(time.perf_counter() - made, 3)
    probed = target.decoder.probed
    lengths = set(lengths_of(model.config.get_text_config(), target.context_length).values()) - set(probed.pending)
    prompt = long_prompt([length for length in lengths if length + 40 < target.context_length])
    own = plain_greedy(model, prompt, 28, VOCABULARY)
    for shape in ("chain", "tree"):
        found = decode(target, Scattered(own), make_structure(shape, 4), prompt, 28)
        assert found.tokens == own, shape
    errors = {check: float(f"{error:.1e}") for check, error in probed.errors.items()}
    log_figure(
        architecture=model_type,
        outcome=target.evaluation,
        attention=model.config._attn_implementation,
        lengths=sorted(lengths),
        pending=probed.pending,
        prompt=len(prompt),
        static=probed.static,
        tokens=len(set(own)),
        errors=errors,
        probe_s=took,
        made_s=round(made - begin, 3),
    )
