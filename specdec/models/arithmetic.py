"""The number formats that a device computes in by itself. All others are emulated, by conversion to float32 and back:
the product of a [2048, 320] and a [320, 4096] matrix takes a core without bfloat16 up to five times as long in bfloat16
as in float32, and a core with bfloat16 a fifth.
"""

import os
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

# The instructions that multiply in a format, by the names of `torch.cpu.get_capabilities`. A processor that can only
# convert to and from it (such as AVX-512 without them) gains nothing by it.
_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}
# oneDNN, which makes torch's products in these formats, may be told to leave instructions unused. What it may use at
# most has such a name; names that hold one of these parts allow the format, all others (AVX2, AVX512_CORE) forbid it.
_LIMIT_NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ALLOWED = {torch.bfloat16: ("BF16", "FP16", "AMX", "AVX10"), torch.float16: ("FP16", "AVX10")}


def computes_natively(dtype: torch.dtype, device: torch.device) -> bool:
    """Tell if a device computes in a floating-point format, rather than emulating it."""
    if dtype not in _INSTRUCTIONS:
        return True
    if device.type == "cuda":
        return dtype != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True  # of other accelerators nothing is known
    able = torch.cpu.get_capabilities()
    limit = next((os.environ[name].upper() for name in _LIMIT_NAMES if os.environ.get(name)), "")
    allowed = limit in ("", "DEFAULT", "ALL") or any(part in limit for part in _ALLOWED[dtype])
    return allowed and any(able.get(instruction, False) for instruction in _INSTRUCTIONS[dtype])


@dataclass(frozen=True)
class Arithmetic:
    """The format that was asked for, a checkpoint's own or the one that a configuration names, and the one to compute
    in on a device. A format that is `named` by a configuration is used even where it is emulated.
    """

    asked: torch.dtype
    used: torch.dtype
    device: torch.device
    named: bool = False

    @property
    def sentence(self) -> str:
        """The reason for computing in another format than was asked for, or what is slow about the one that is used;
        "" where the format is used that was asked for and the device computes in it.
        """
        machine = "processor" if self.device.type == "cpu" else "GPU"
        lacks = f"This {machine} has no {format_name(self.asked)} arithmetic"
        if self.used != self.asked:
            return f"{lacks} and would emulate it slowly: {format_name(self.used)} is used instead."
        if self.named and not computes_natively(self.used, self.device):
            return f"{lacks} and emulates it slowly, as dtype={format_name(self.used)} asks for: dtype=auto does not."
        return ""

    def as_dict(self) -> dict[str, str]:
        """Return what is recorded of it beside the format that is used."""
        asked = format_name(self.asked)
        reason = {"dtype_reason": self.sentence} if self.sentence else {}
        return {"dtype_asked": asked if self.named else f"auto ({asked})", **reason}


def native_arithmetic(asked: torch.dtype, device: torch.device) -> Arithmetic:
    """Return the format that was asked for where the device computes in it, and float32 where it does not."""
    return Arithmetic(asked, asked if computes_natively(asked, device) else torch.float32, device)


def model_arithmetic(named: torch.dtype | None, own: torch.dtype, device: torch.device) -> Arithmetic:
    """Return the format of a model: the named one (None: `dtype=auto`), or its own where the device computes in it."""
    return native_arithmetic(own, device) if named is None else Arithmetic(named, named, device, named=True)


def format_name(dtype: torch.dtype) -> str:
    """Return the name of a format as configurations have it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


# The formats of models that were loaded, as long as they live: a model knows only what it got.
ARITHMETIC: WeakKeyDictionary[Any, Arithmetic] = WeakKeyDictionary()
