"""The reading of SASS for registers that a path has not written."""

from __future__ import annotations

from .unset import unset

# What an H200 multiplied wrongly (Triton 3.6, its assembler of CUDA 12.8): the second loop has half of its descriptor
# from in front of the first, where that has a turn.
SHARED_BY_LOOPS = """
        /*0000*/                   UMOV UR7, 0x10 ;
        /*0010*/                   ULDC.64 UR42, c[0x0][0x210] ;
        /*0020*/              @!P0 BRA 0x60 ;
        /*0030*/                   UIADD3 UR40, UP1, UR7, 0x2, URZ ;
        /*0040*/                   UIADD3.X UR41, UR7, 0x40000040, URZ, UP1, !UPT ;
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R88, gdesc[UR40], R88 ;
        /*0058*/               @P1 BRA 0x50 ;
        /*0060*/                   UIADD3 UR16, UP1, UR40, 0x2, URZ ;
        /*0070*/                   EXIT ;
"""


def test_a_register_that_a_path_leaves_unwritten_is_found():
    assert unset(SHARED_BY_LOOPS) == {"UR40": "60: UIADD3 UR16, UP1, UR40, 0x2, URZ"}
    assert not unset(SHARED_BY_LOOPS.replace("@!P0 BRA 0x60", "     NOP"))


def test_of_two_descriptors_an_operand_in_registers_leaves_the_first_out():
    line = "        /*0000*/  HGMMA.64x32x16.F32.BF16 R24, R48, gdesc[UR48].tnspB, R24 ;\n        /*0010*/ EXIT ;\n"
    assert {*unset(line)} == {"UR50", "UR51"}
    assert {*unset(line.replace("R48, gdesc", "gdesc"))} == {"UR48", "UR49", "UR50", "UR51"}


def test_an_indirect_branch_reaches_what_nothing_else_does():
    code = ["UMOV UR4, 0x1", "BRX R2 -0x20", "UMOV UR6, UR4", "EXIT", "UMOV UR8, UR5", "EXIT"]
    lines = "\n".join(f"        /*{16 * place:04x}*/  {line} ;" for place, line in enumerate(code))
    assert unset(lines) == {"UR5": "40: UMOV UR8, UR5"}
