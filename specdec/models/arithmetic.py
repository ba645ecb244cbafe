"""The number formats that a device computes in by itself. All others are emulated, by conversion to float32 and back:
the product of a [2048, 320] and a [320, 4096] matrix takes a core without bfloat16 up to five times as long in bfloat16
as in float32, and a core with bfloat16 a fifth.
"""

from dataclasses import dataclass

import torch

# The instructions that multiply in a format, by the names of `torch.cpu.get_capabilities`. A processor that can only
# convert to and from it (such as AVX-512 without them) gains nothing by it.
_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}


def computes_natively(dtype: torch.dtype, device: torch.device) -> bool:
    """Tell if a device computes in a floating-point format, rather than emulating it."""
    if dtype not in _INSTRUCTIONS:
        return True
    if device.type == "cuda":
        return dtype != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True  # of other accelerators nothing is known
    able = torch.cpu.get_capabilities()
    return any(able.get(instruction, False) for instruction in _INSTRUCTIONS[dtype])


@dataclass(frozen=True)
class Arithmetic:
    """The format that was asked for, such as a checkpoint's own, and the one to compute in on a device."""

    asked: torch.dtype
    used: torch.dtype
    device: torch.device

    @property
    def sentence(self) -> str:
        """The reason for computing in another format than was asked for; "" where it is the same."""
        if self.used == self.asked:
            return ""
        asked, used = (str(dtype).removeprefix("torch.") for dtype in (self.asked, self.used))
        machine = "processor" if self.device.type == "cpu" else "GPU"
        return f"This {machine} has no {asked} arithmetic and would emulate it slowly: {used} is used instead."


def native_arithmetic(asked: torch.dtype, device: torch.device) -> Arithmetic:
    """Return the format that was asked for where the device computes in it, and float32 where it does not."""
    return Arithmetic(asked, asked if computes_natively(asked, device) else torch.float32, device)
