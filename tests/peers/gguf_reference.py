"""Evaluates a GGUF file as llama.cpp's architectures are documented, from its metadata and tensors alone."""

import torch


def fields_of(reader):
    """The metadata without the prefix of the architecture, which is under `general.architecture` itself."""
    values = {name: field.contents() for name, field in reader.fields.items()}
    prefix = values["general.architecture"] + "."
    return {name.removeprefix(prefix): value for name, value in values.items()}


def tensors_of(reader):
    """Every tensor in float64, rows first."""
    found = {}
    for tensor in reader.tensors:
        data = torch.from_numpy(tensor.data.copy())
        if tensor.tensor_type.name == "BF16":
            data = data.view(torch.bfloat16)
        found[tensor.name] = data.double()
    return found


def _norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rotated(x, fields, tensors, adjacent):
    """Rotate [S, heads, D]: of neighbours in a head (`adjacent`), or of row i with row i + D / 2."""
    size = fields["rope.dimension_count"]
    steps = torch.arange(0, size, 2, dtype=torch.float64) / size
    frequencies = fields["rope.freq_base"] ** -steps / tensors.get("rope_freqs.weight", torch.ones(1))
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies  # [S, D / 2]
    turned = torch.polar(torch.ones_like(angles), angles)[:, None]
    if adjacent:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turned).flatten(-2)
    halves = torch.complex(*x.chunk(2, -1)) * turned
    return torch.cat([halves.real, halves.imag], -1)


def logits(reader, tokens):
    """The logits [S, V] of tokens [S]."""
    fields, tensors = fields_of(reader), tensors_of(reader)
    adjacent = fields["general.architecture"] == "llama"
    eps, head = fields["attention.layer_norm_rms_epsilon"], fields["attention.key_length"]
    heads, of_keys = fields["attention.head_count"], fields["attention.head_count_kv"]

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)

    x = tensors["token_embd.weight"][torch.tensor(tokens)]
    for layer in range(fields["block_count"]):
        at = f"blk.{layer}."
        normed = _norm(x, tensors[at + "attn_norm.weight"], eps)
        q, k, v = (linear(normed, at + f"attn_{name}").unflatten(-1, (-1, head)) for name in "qkv")
        if at + "attn_q_norm.weight" in tensors:
            q, k = (_norm(y, tensors[at + f"attn_{name}_norm.weight"], eps) for y, name in ((q, "q"), (k, "k")))
        q, k = (_rotated(y, fields, tensors, adjacent) for y in (q, k))
        k, v = (y.repeat_interleave(heads // of_keys, 1) for y in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / head**0.5
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
        x = x + linear(mixed, at + "attn_output")
        normed = _norm(x, tensors[at + "ffn_norm.weight"], eps)
        gated = torch.nn.functional.silu(linear(normed, at + "ffn_gate")) * linear(normed, at + "ffn_up")
        x = x + linear(gated, at + "ffn_down")
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    return _norm(x, tensors["output_norm.weight"], eps) @ output.T
