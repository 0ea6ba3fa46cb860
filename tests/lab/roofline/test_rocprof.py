"""The counter file for rocprof, and both forms of what it writes."""

from pathlib import Path

import pytest

from autotune.errors import AutotuneError, UsageError
from autotune.lab.roofline.rocprof import COUNTERS, KernelCounters, counter_file, read_results, write_counter_file

# rocprof's: a row a launch. rocprofv3's: a row a launch and counter (both after AMD's documentation).
WIDE = """Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,lds,scr,vgpr,sgpr,fbar,sig,obj,Wavefronts,VALUInsts,SALUInsts
0,"flash_attention_forward.kd",0,0,1,1,32768,256,16384,0,128,96,0,0x0,0x0,512,1000.0,200.0
1,"flash_attention_forward.kd",0,0,1,1,32768,256,16384,0,128,96,0,0x0,0x0,512,1002.0,200.0
2,"softmax_rows(float*, int) [clone .kd]",0,0,1,1,32768,256,0,0,32,32,0,0x0,0x0,64,10.0,4.0
"""
COLUMNS = "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Name Workgroup_Size "
COLUMNS += "LDS_Block_Size Scratch_Size VGPR_Count SGPR_Count Counter_Name Counter_Value"
LONG = (
    ",".join(f'"{column}"' for column in COLUMNS.split())
    + """
1,1,1,1,9,9,32768,"flash_attention_forward",256,16384,0,128,96,"L2CacheHit",71.5
2,2,1,1,9,9,32768,"flash_attention_forward",256,16384,0,128,96,"L2CacheHit",72.5
2,2,1,1,9,9,32768,"flash_attention_forward",256,16384,0,128,96,"SQ_WAVES",512
"""
)


def test_the_file_has_a_line_a_pass_and_every_counter_once() -> None:
    lines = counter_file().splitlines()
    passes = [line.removeprefix("pmc: ").split() for line in lines if line.startswith("pmc: ")]
    assert [name for names in passes for name in names] == list(COUNTERS)
    assert len(set(COUNTERS)) == len(COUNTERS)
    wanted = {"Wavefronts", "VALUInsts", "SALUInsts", "VFetchInsts", "VWriteInsts", "LDSInsts", "VALUUtilization"}
    assert {*wanted, "VALUBusy", "SALUBusy", "MemUnitBusy", "L2CacheHit", "LDSBankConflict"} <= set(COUNTERS)
    assert all(line.startswith(("#", "pmc: ")) for line in lines)
    assert max(map(len, passes)) <= 3


def test_it_is_written_where_there_is_a_folder(tmp_path: Path) -> None:
    write_counter_file(tmp_path / "counters.txt")
    assert (tmp_path / "counters.txt").read_text() == counter_file()
    with pytest.raises(UsageError, match="lies in no folder"):
        write_counter_file(tmp_path / "none" / "counters.txt")


def test_both_forms_are_read_and_several_passes_joined(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(WIDE)
    (tmp_path / "long.csv").write_text(LONG)
    flash, softmax = read_results([tmp_path / "wide.csv", tmp_path / "long.csv"])
    assert flash == KernelCounters(
        "flash_attention_forward",
        2,
        {"Wavefronts": 512.0, "VALUInsts": 1001.0, "SALUInsts": 200.0, "L2CacheHit": 72.0},
    )
    assert softmax == KernelCounters("softmax_rows", 1, {"Wavefronts": 64.0, "VALUInsts": 10.0, "SALUInsts": 4.0})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "its columns: a, b"),
        ("", "its columns: "),
        (WIDE.replace("1000.0", "many"), "VALUInsts is 'many'"),
        (WIDE.splitlines()[0] + "\n", "has no counter"),
        (WIDE[: WIDE.index(",200.0\n")] + "\n", "line 2 is cut short; expected 18 values"),
        (LONG.removesuffix(',"SQ_WAVES",512\n'), "line 4 is cut short; expected 15 values"),
        (LONG.replace(',"Counter_Value"', ""), "its columns: Correlation_Id, "),
        (WIDE.replace("softmax", "x" * 200_000), "is no CSV: field larger than field limit"),
        (b"\x7fELF\xff\xfe\n", "is no CSV: 'utf-8' codec can't decode byte 0xff"),
    ],
    ids=["foreign", "empty", "no number", "no launch", "cut", "long cut", "no values", "one long field", "binary"],
)
def test_other_files_are_refused_by_name(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(AutotuneError) as caught:
        read_results([path])
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
