"""Published checkpoints are recognised by their files, read only where everything fits, and never unpickled."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.convert import convert, main
from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import CheckpointFiles, open_checkpoint
from specdec.published.recognise import recognise

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "published"
    path.mkdir()
    save_file(WEIGHTS, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"hidden_size": 3, "tied": True}))
    return path


def sentence_of(call, *arguments) -> str:
    with pytest.raises(ModelLoadError) as raised:
        call(*arguments)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    return str(raised.value)


def test_a_folder_is_read_tensor_by_tensor(folder):
    files = open_checkpoint(str(folder))
    assert files.tensors == {"a.weight": (2, 3), "b": (4,)}
    assert torch.equal(files.tensor("a.weight"), WEIGHTS["a.weight"])
    assert {name: value.dtype for name, value in files.read(["b"]).items()} == {"b": torch.bfloat16}
    assert files.setting("hidden_size", int) == 3 and files.setting("absent", int, 7) == 7 and files.commit is None

    assert "has no layers in its config.json" in sentence_of(files.setting, "layers", int)
    assert "tied=True" in sentence_of(files.setting, "tied", int)


def test_shards_are_one_checkpoint(folder):
    save_file({"c": torch.ones(1)}, folder / "more.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"c": "more.safetensors", "b": "model.safetensors"}}))
    assert set(open_checkpoint(str(folder)).tensors) == {"a.weight", "b", "c"}
    index.write_text(json.dumps({"weight_map": {"c": "third.safetensors"}}))
    assert "lacks third.safetensors" in sentence_of(open_checkpoint, str(folder))
    index.write_text(json.dumps({"weight_map": {"d": "more.safetensors"}}))
    assert "lacks the tensors d" in sentence_of(open_checkpoint, str(folder))
    save_file({"b": torch.ones(1)}, folder / "more.safetensors")
    index.unlink()
    assert "b in model.safetensors and in more.safetensors" in sentence_of(open_checkpoint, str(folder))


@pytest.mark.parametrize(
    ("file", "content"), [("model.safetensors", b"torn"), ("config.json", b"{"), ("config.json", b"[]")]
)
def test_damaged_files_are_named(folder, file, content):
    (folder / file).write_bytes(content)
    assert file in sentence_of(open_checkpoint, str(folder))


def test_what_is_not_there_or_cannot_be_had():
    """HF_HUB_OFFLINE is set for all tests: nothing is asked, nothing is in the cache."""
    for name in ("./nowhere", "/nowhere/x", "a/b/c", "nowhere", "models/x.safetensors"):
        assert f"drafter.model={name} does not exist" in sentence_of(open_checkpoint, name)
    told = sentence_of(open_checkpoint, "nobody/nothing")
    assert "drafter.model=nobody/nothing" in told and "hub is not asked" in told


def test_a_hub_id_in_the_local_cache(folder, monkeypatch, tmp_path):
    from huggingface_hub import constants

    commit = "0" * 40
    place = tmp_path / "cache" / "models--some--heads"
    (place / "snapshots").mkdir(parents=True)
    folder.rename(place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    files = open_checkpoint("some/heads")
    assert files.commit == commit and set(files.tensors) == set(WEIGHTS)


def test_an_unknown_format_says_what_was_found(folder):
    told = sentence_of(recognise, open_checkpoint(str(folder)), "medusa")
    assert "no known format" in told and "hidden_size" in told and "a.weight" in told and "Medusa-1" in told


def test_pickles_are_refused_with_the_command_that_converts_them(folder, capsys):
    """The command of the sentence, run, makes a folder that can be read."""
    (folder / "model.safetensors").unlink()
    torch.save(WEIGHTS, folder / "heads.pt")
    command = f"python -m specdec.convert {folder / 'heads.pt'}"
    assert command in sentence_of(recognise, open_checkpoint(str(folder)), "medusa")
    assert command in sentence_of(open_checkpoint, str(folder / "heads.pt"))
    main(command.split()[3:])
    assert "heads.safetensors" in capsys.readouterr().out
    assert set(open_checkpoint(str(folder)).tensors) == set(WEIGHTS)


def test_a_config_that_is_too_deep_to_be_read_is_refused(folder):
    (folder / "config.json").write_text(100_000 * "[")
    assert "has a config.json that cannot be read" in sentence_of(open_checkpoint, str(folder))


def test_pickles_of_a_hub_id_are_fetched_first(folder):
    (folder / "model.safetensors").unlink()
    files = CheckpointFiles("some/heads", folder, ["medusa_lm_head.pt"])
    told = sentence_of(recognise, files, "medusa")
    assert "`hf download some/heads config.json medusa_lm_head.pt --local-dir heads && " in told
    assert "python -m specdec.convert heads/medusa_lm_head.pt`" in told


def test_a_conversion_keeps_names_values_and_dtypes(tmp_path):
    shared = torch.ones(3)
    torch.save({**WEIGHTS, "c": shared, "d": shared, "e": torch.ones(4, 4).T[1:]}, tmp_path / "x.bin")
    written = load_file(convert(tmp_path / "x.bin", tmp_path / "y.safetensors"))
    assert set(written) == {"a.weight", "b", "c", "d", "e"} and written["b"].dtype == torch.bfloat16
    assert torch.equal(written["a.weight"], WEIGHTS["a.weight"])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x.bin", "y.safetensors"]
    assert "exists" in sentence_of(convert, tmp_path / "x.bin", tmp_path / "y.safetensors")
    (tmp_path / "x.bin").write_bytes(b"no pickle")
    assert "x.bin" in sentence_of(convert, tmp_path / "x.bin")
    assert "does not exist" in sentence_of(convert, tmp_path / "y.pt")


class Code:
    """A pickle that would call print while it is read."""

    def __reduce__(self):
        return print, ("this code ran",)


@pytest.mark.parametrize("content", [[torch.ones(1)], {}, {"a": {"b": torch.ones(1)}}, {"a": 3}, {"a": Code()}])
def test_only_a_dict_of_tensors_is_converted(tmp_path, content, capsys):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(SystemExit) as raised:
        main([str(tmp_path / "x.pt")])
    shown = capsys.readouterr()
    assert raised.value.code == 2 and shown.err.count("\n") == 1 and "x.pt" in shown.err and "ran" not in shown.out
    assert not (tmp_path / "x.safetensors").exists()
