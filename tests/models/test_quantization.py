"""Quantised weights and revisions: transformers' own keys, what is refused, and what a run says of them."""

from copy import deepcopy

import pytest
import torch

from specdec.errors import ModelLoadError, UsageError
from specdec.models.load import describe_model, load_model
from specdec.models.quantization import quantization_in_words, quantized_loading
from specdec.targets import targets
from specdec.targets.causal import Causal

FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}
CPU = torch.device("cpu")
LLAMA = {"model_type": "llama", "seed": 0}


@pytest.fixture
def marked(tiny_model, sampling):
    """A target whose checkpoint says that its weights are quantised; they are not, which nothing here reads."""
    model = deepcopy(tiny_model("llama"))
    model.config.quantization_config = FOUR_BITS
    return Causal(model, sampling(temperature=0.0), name="some/model")


def test_a_quantised_target_is_called_another_model(marked, tiny_model, sampling):
    (note,) = marked.remarks
    assert "quantised (bitsandbytes, load_in_4bit): it is another model than some/model as it was trained" in note
    assert marked.tags == {"quantization": "bitsandbytes, load_in_4bit"}
    assert describe_model(marked.model, "some/model")["quantization"] == FOUR_BITS
    assert marked.products() == [], "a roofline would count weights that are packed"
    plain = Causal(tiny_model("llama"), sampling(temperature=0.0))
    assert plain.remarks == () and plain.tags == {}
    assert "quantization" not in describe_model(plain.model, "x")


def test_it_judges_its_texts_itself(marked):
    marked.model.bfloat16()
    marked.score([1, 2], [3])
    assert marked._scorer is marked.model, "there is no wider form of its weights to score with"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (FOUR_BITS, "bitsandbytes, load_in_4bit"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq, 4 bits"),
        ({"quant_method": "fp8", "fmt": "e4m3"}, "fp8, e4m3"),
    ],
)
def test_words(values, words):
    assert quantization_in_words(values) == words


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"bits": 4}, "it needs a quant_method, one of .*gptq"),
        ({"quant_method": "none_such"}, "transformers refuses it: Unknown quantization type, got none_such"),
    ],
)
def test_a_bad_quantisation_is_one_sentence(values, says):
    with pytest.raises(UsageError, match=f"^Bad value target.quantization: {says}"):
        quantized_loading(values, CPU)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"revision": "v2"}, "target.revision=v2: it names a version .* is a folder; use target.revision=null"),
        ({"quantization": FOUR_BITS, "tensor_parallel": 2}, "does not go with target.tensor_parallel=2"),
        ({"quantization": FOUR_BITS, "model": "random", "shape": LLAMA}, "does not go with target.model=random"),
        ({"model": "random", "shape": None}, "target.shape"),
        ({"model": "pocket", "shape": LLAMA}, "target.shape"),
    ],
)
def test_keys_that_do_not_go_together(group_values, sampling, changes, says):
    with pytest.raises(UsageError, match=says):
        targets.build(group_values("target", "causal", **changes), sampling=sampling())


def test_the_revision_reaches_transformers(monkeypatch):
    import transformers

    asked = []

    def refuse(name, **options):
        asked.append(options["revision"])
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    monkeypatch.setattr("specdec.hub.settle", lambda: "it is a test")
    monkeypatch.setattr("specdec.hub.is_cached", lambda name: True)
    with pytest.raises(ModelLoadError):
        load_model("org/name", dtype=None, device=CPU, attention="auto", revision="v2")
    assert asked == ["v2"]


def test_weights_in_four_bits_are_placed_where_they_are_used():
    values = {"load_in_4bit": True, "quant_method": "none_such"}
    assert quantized_loading(values, CPU)["device_map"] == {"": CPU}
