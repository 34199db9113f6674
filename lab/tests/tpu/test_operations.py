"""Operations parsed from a TPU program's text."""

from __future__ import annotations

import pytest

from lab.tpu.operations import Operation, operations

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"70","iteration_bounds":["1"]}}'
SOURCE = 'metadata={op_name="jit(step)/while/body/add"}'
TEXT = f"""HloModule jit_step

%product (p: bf16[8,128]) -> bf16[8,128] {{
  %p = bf16[8,128]{{1,0}} parameter(0)
  %inner = bf16[8,128]{{1,0}} fusion(%p), kind=kLoop, calls=%sum
  ROOT %dot = bf16[8,128]{{1,0}} convolution(%p, %inner), dim_labels=bf_io->bf
}}

%strips (p: bf16[8,128]) -> bf16[8,128] {{
  %p = bf16[8,128]{{1,0}} parameter(0)
  ROOT %seen = bf16[8,128]{{1,0}} convolution(%p, %p), window={{size=3x3 pad=1_1x0_0}}, \
dim_labels=0b1f_01io->0b1f, metadata={{op_name="jit(step)/conv_general_dilated"}}
}}

%sum (p: bf16[8,128]) -> bf16[8,128] {{
  %p = bf16[8,128]{{1,0}} parameter(0)
  ROOT %add = bf16[8,128]{{1,0}} add(%p, %p)
}}

%move (p: bf16[8,128]) -> bf16[128,8] {{
  %p = bf16[8,128]{{1,0}} parameter(0)
  ROOT %turned = bf16[128,8]{{0,1}} transpose(%p), dimensions={{1,0}}
}}

%condition (p: s32[]) -> pred[] {{
  %limit = s32[] constant(40)
  ROOT %less = pred[] compare(%p, %limit), direction=LT
}}

%twice (p: s32[]) -> pred[] {{
  %limit = s32[] constant(2)
  ROOT %less = pred[] compare(%p, %limit), direction=LT
}}

%piped (p: bf16[8,128]) -> bf16[8,128] {{
  ROOT %five = bf16[8,128]{{1,0}} fusion(%p), kind=kOutput, calls=%strips, {CYCLES}
}}

%exchange (p: bf16[8,128]) -> bf16[8,128] {{
  ROOT %swap = bf16[8,128]{{1,0}} all-to-all(%p), replica_groups=[2,4]<=[8], dimensions={{0}}
}}

%body (p: bf16[8,128]) -> bf16[8,128] {{
  %one = bf16[8,128]{{1,0:T(8,128)(2,1)}} fusion(%p), kind=kOutput, calls=%product, {CYCLES}
  %two = bf16[8,128]{{1,0}} fusion(%p), kind=kLoop, calls=%sum, {SOURCE}, {CYCLES}
  %three = bf16[128,8]{{0,1}} fusion(%p), kind=kLoop, calls=%move, {CYCLES}
  %four = bf16[128,8]{{1,0}} copy(%three), {CYCLES}
  %inner = bf16[8,128]{{1,0}} while(%p), condition=%twice, body=%piped
  %free = bf16[1024]{{0}} bitcast(%four)
  %swapped = bf16[8,128]{{1,0}} async-start(%one), calls=%exchange
  %transposed_attention.2 = (bf16[2,128,512]{{2,1,0}}) custom-call(%one, %two), \
custom_call_target="tpu_custom_call", operand_layout_constraints={{bf16[2,128,512]{{2,1,0}}, \
bf16[2,256,128]{{2,1,0}}}}, metadata={{op_name="jit(step)/transposed_attention"}}
}}

ENTRY %main (p: bf16[8,128]) -> bf16[8,128] {{
  %loop = bf16[8,128]{{1,0}} while(%p), condition=%condition, body=%body
  ROOT %last = bf16[8,128]{{1,0}} negate(%loop), {CYCLES}
}}
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Operation]:
    return {operation.name: operation for operation in operations(TEXT)}


def test_operations_are_classified(found: dict[str, Operation]) -> None:
    assert {name: operation.kind for name, operation in found.items()} == {
        "one": "product",
        "two": "elementwise",
        "three": "copy",
        "four": "copy",
        "five": "convolution",
        "swap": "collective",
        "transposed_attention.2": "kernel",
        "last": "elementwise",
    }


def test_what_stands_in_a_loop_runs_as_often_as_that(found: dict[str, Operation]) -> None:
    assert (found["two"].within, found["two"].runs, found["two"].total) == ("body", 40, 2800)
    assert (found["five"].within, found["five"].runs) == ("piped", 80)
    assert (found["swap"].within, found["swap"].runs) == ("exchange", 40)
    assert found["last"].runs == 1 and found["two"].source.endswith("body/add")


def test_kernels_report_what_they_read(found: dict[str, Operation]) -> None:
    assert found["transposed_attention.2"].operands == ((2, 128, 512), (2, 256, 128))
