"""The reading of SASS for registers that give wrong values."""

from __future__ import annotations

from .registers import overwritten, unread, unset

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
    code = ["UMOV UR4, 0x1", "BRX R2 -0x20", "UMOV UR6, UR4", "EXIT", "R2UR UR8, UR5", "EXIT"]
    lines = "\n".join(f"        /*{16 * place:04x}*/  {line} ;" for place, line in enumerate(code))
    assert unset(lines) == {"UR5": "40: R2UR UR8, UR5"}


def test_a_copy_hands_on_that_a_register_is_unset():
    """A pair is copied and one half of it written at once: nobody reads what was copied there."""
    code = ["UMOV UR4, UR27", "{}", "UIADD3 UR6, UR4, 0x1, URZ", "EXIT"]
    lines = "\n".join(f"        /*{16 * place:04x}*/  {line} ;" for place, line in enumerate(code))
    assert not unset(lines.format("UMOV UR4, 0x1"))
    assert unset(lines.format("NOP")) == {"UR4": "20: UIADD3 UR6, UR4, 0x1, URZ"}


# What the portable flash forward had with its scores a tile ahead: the weights of the last tile are an operand of the
# second product, which has not been waited for when the loop goes round.
AHEAD = """
        /*0000*/                   HGMMA.64x64x16.F32.BF16 R88, gdesc[UR40], RZ, !UPT, gsb0 ;
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, R152, gdesc[UR8].tnspB, R24, gsb0 ;
        /*0020*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0030*/                   FMNMX R120, R22, R19, !PT ;
        /*0040*/                   FFMA R155, R26, UR34, -R19.reuse ;
        /*0050*/               @P0 BRA 0x0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/                   MOV R152, R120 ;
        /*0080*/                   EXIT ;
"""


def test_an_operand_in_flight_that_is_written_is_found():
    assert overwritten(AHEAD) == {"R155": "40: FFMA R155, R26, UR34, -R19.reuse"}
    assert not overwritten(AHEAD.replace("FFMA R155", "FFMA R151"))
    assert not overwritten(AHEAD.replace("gsb0, 0x1", "gsb0, 0x0"))


def test_an_operand_in_flight_is_looked_for_round_the_loop():
    before = AHEAD.replace("FFMA R155", "FFMA R151").replace(
        "        /*0000*/", "        /*0000*/  CS2R R154, SRZ ;\n        /*0004*/"
    )
    assert {*overwritten(before)} == {"R154", "R155"}


def test_a_wait_that_leaves_one_product_in_flight_ends_the_older_one():
    another = "        /*0018*/  HGMMA.64x64x16.F32.BF16 R88, gdesc[UR40], RZ, !UPT, gsb0 ;\n"
    younger = AHEAD.replace("        /*0020*/", another + "        /*0020*/")
    assert not overwritten(younger)


GIVEN_BACK = """
        /*0000*/                   LDSM.16.M88.4 R228, [R16+0x34000] ;
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x2, 0x80 ;
        /*0020*/              @!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R6+URZ+0x382e0], RZ ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, R228, gdesc[UR12], RZ, !UPT, gsb0 ;
        /*0040*/                   EXIT ;
"""


def test_what_is_given_back_before_its_loads_are_read_is_found():
    assert unread(GIVEN_BACK) == {f"R{number}": "20: SYNCS.ARRIVE.TRANS64.A1T0" for number in range(228, 232)}
    read = "        /*0008*/  HGMMA.64x64x16.F32.BF16 R24, R228, gdesc[UR12], RZ, !UPT, gsb0 ;\n        /*0010*/"
    assert not unread(GIVEN_BACK.replace("        /*0010*/", read))


def test_what_the_warp_that_tells_has_read_others_may_not_have_read():
    product = "        /*0018*/  HGMMA.64x64x16.F32.BF16 R24, R228, gdesc[UR12], RZ, !UPT, gsb0 ;\n        /*0020*/"
    assert {*unread(GIVEN_BACK.replace("        /*0020*/", product))} == {f"R{number}" for number in range(228, 232)}


def test_a_load_is_served_when_one_of_its_registers_is_read():
    store = "        /*0008*/  STG.E.128 desc[UR4][R2.64], R228 ;\n        /*0010*/"
    assert not unread(GIVEN_BACK.replace("        /*0010*/", store))


def test_not_what_expects_a_copy_but_the_copy_overwrites():
    expected = GIVEN_BACK.replace(".A1T0", "")
    assert not unread(expected)
    copied = expected.replace("        /*0030*/", "        /*0028*/  UTMALDG.4D [UR8], [UR14] ;\n        /*0030*/")
    assert unread(copied) == {f"R{number}": "28: UTMALDG.4D" for number in range(228, 232)}
