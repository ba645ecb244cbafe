"""`python -m specdec.convert FILE.pt [OUTPUT.safetensors]` rewrites pickled tensors as safetensors.

The only place that opens a pickle, and only when it is asked to: with torch's weights-only reader, which runs no code.
"""

import argparse
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from specdec.commands.failures import OneSentence, told_faults
from specdec.errors import ModelLoadError, in_one_line


def convert(source: Path, output: Path | None = None) -> Path:
    """Write the tensors of a pickled dict to a safetensors file, each under its name and in its dtype, and return the
    file: a new one, by default beside the source, with the ending replaced. ModelLoadError for a source that is not
    there, an output that is, and anything but a dict of tensors.
    """
    output = source.with_suffix(".safetensors") if output is None else output
    if not source.is_file():
        raise ModelLoadError(f"File {source} does not exist: give a file of pickled tensors (.pt or .bin).")
    if output.suffix != ".safetensors":
        raise ModelLoadError(f"Output {output} should end in .safetensors.")
    if output.exists():
        raise ModelLoadError(f"Output {output} exists: remove it, or give another name as the second argument.")
    import torch
    from safetensors.torch import save_file

    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        why = in_one_line(error)
        raise ModelLoadError(
            f"File {source} is not a pickle of plain tensors, and nothing else is ever unpickled ({why}): ask its "
            "publisher for safetensors."
        ) from None
    if not isinstance(loaded, dict) or not loaded:
        raise ModelLoadError(
            f"File {source} holds a {type(loaded).__name__}, not a dict of tensors: it is not converted."
        )
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelLoadError(
                f"File {source} holds a {type(value).__name__} at {name!r}, not a tensor under a name: it is not "
                "converted."
            )
    # Tensors that share memory are copied, because safetensors stores each apart.
    weights = {name: value.detach().contiguous().clone() for name, value in loaded.items()}
    partial = output.with_name(output.name + ".partial")
    try:
        save_file(weights, partial, metadata={"format": "pt"})
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return output


def parser() -> argparse.ArgumentParser:
    made = OneSentence("python -m specdec.convert", description="Rewrite pickled tensors as safetensors.")
    made.add_argument("file", type=Path, help="a dict of tensors that torch.save wrote (.pt, .bin)")
    made.add_argument("output", type=Path, nargs="?", help="default: FILE with the ending .safetensors")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The console entry point; exit code 2 with one sentence for a file that is not converted."""
    with told_faults():
        given = parser().parse_args(arguments)
        written = convert(given.file, given.output)
    print(f"Wrote {written} ({written.stat().st_size:,} bytes).")


if __name__ == "__main__":
    main()
