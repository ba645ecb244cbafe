"""Products in bfloat16 by dot products of the processor, compiled by inductor as the packages have them."""

from importlib import import_module
from zipfile import ZipFile

import pytest
import torch
from torch import nn

from specdec.compiled.packaged import _settings

ROWS, WIDTH, COLUMNS = (2, 5, 8, 9, 17), 70, 96  # columns in blocks of 48, rows in blocks of 8 and what is left


@pytest.mark.slow
@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="the processor has no AVX512-BF16")
@torch.no_grad()
def test_products_of_any_number_of_rows_are_those_of_float32(tmp_path, monkeypatch):
    torch.manual_seed(4)
    linear = nn.Linear(WIDTH, COLUMNS, bias=False).to(torch.bfloat16).requires_grad_(False)
    given = [torch.randn(rows, WIDTH, dtype=torch.bfloat16) for rows in ROWS]
    path = tmp_path / "linear.pt2"
    import_module("specdec.compiled.dot_products")
    from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmAMX, micro_gemm_configs

    # Inductor prefers this kernel where the processor has AMX.
    monkeypatch.delitem(micro_gemm_configs, CppMicroGemmAMX)
    program = torch.export.export(linear, (given[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    settings = _settings(torch.bfloat16)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    with ZipFile(path) as archive:
        code = [archive.read(name) for name in archive.namelist() if name.endswith(".kernel.cpp")]
    assert b"_mm512_dpbf16_ps" in b"".join(code)
    compiled = torch._inductor.aoti_load_package(str(path))
    for rows in given:
        torch.testing.assert_close(
            compiled(rows).float(), rows.float() @ linear.weight.float().T, rtol=2**-8, atol=1e-6
        )
