"""The format that a device computes in: the one asked for, or float32 where it would only be emulated."""

import pytest
import torch

from specdec.models.arithmetic import computes_natively, native_arithmetic

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
# Reports of torch, cut to what matters: instructions that a processor has or lacks.
ZEN_4 = {"avx512_f": True, "avx512_bf16": True, "avx512_fp16": False, "amx_bf16": False, "amx_fp16": False}
ARROW_LAKE = {"avx2": True, "avx_ne_convert": True, "avx512_bf16": False, "amx_tile": False}  # conversions alone
SAPPHIRE_RAPIDS = ZEN_4 | {"avx512_fp16": True, "amx_bf16": True, "amx_tile": True}
NEOVERSE_V1 = {"neon": True, "fp16_arith": True, "bf16": True, "sve_bf16": True}


@pytest.mark.parametrize(
    ("able", "bfloat16", "float16"),
    [
        (ZEN_4, True, False),
        (ARROW_LAKE, False, False),
        (SAPPHIRE_RAPIDS, True, True),
        (NEOVERSE_V1, True, True),
        ({}, False, False),
    ],
)
def test_a_processor_computes_in_what_it_has_instructions_for(processor, able, bfloat16, float16):
    processor(able)
    assert computes_natively(torch.bfloat16, CPU) == bfloat16
    assert computes_natively(torch.float16, CPU) == float16
    assert computes_natively(torch.float32, CPU) and computes_natively(torch.float64, CPU)
    assert native_arithmetic(torch.bfloat16, CPU).used == (torch.bfloat16 if bfloat16 else torch.float32)


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_that_emulates_bfloat16_does_not_count(monkeypatch, native):
    """torch says yes to bfloat16 on older GPUs too, unless it is asked without emulation."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    assert computes_natively(torch.bfloat16, CUDA) == native
    assert computes_natively(torch.float16, CUDA)
    assert ("GPU" in native_arithmetic(torch.bfloat16, CUDA).sentence) == (not native)


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize(
    ("limit", "bfloat16", "float16"),
    [
        ("AVX2", False, False),
        ("avx512_core", False, False),
        ("AVX2_VNNI_2", False, False),  # conversions alone
        ("AVX512_CORE_BF16", True, False),
        ("AVX512_CORE_FP16", True, True),
        ("AVX512_CORE_AMX", True, False),
        ("DEFAULT", True, True),
        ("", True, True),
    ],
)
def test_instructions_that_are_switched_off_do_not_count(processor, monkeypatch, name, limit, bfloat16, float16):
    processor(SAPPHIRE_RAPIDS)
    monkeypatch.setenv(name, limit)
    assert (computes_natively(torch.bfloat16, CPU), computes_natively(torch.float16, CPU)) == (bfloat16, float16)
