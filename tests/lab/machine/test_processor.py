"""Facts of a machine, read from texts as Linux writes them."""

from pathlib import Path

import pytest

from autotune import platforms
from autotune.errors import MissingDependencyError, UnknownNameError
from autotune.lab.machine import processor
from autotune.lab.machine.processor import Processor, choose_kind, read_processor, usable_bytes
from tests import sample

MEMINFO = "MemTotal:       24596744 kB\nMemFree:        21000000 kB\nMemAvailable:   20000000 kB\n"


def serve(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    monkeypatch.setattr(processor, "_text", lambda path: texts.get(path, ""))


def test_the_device_is_what_is_here_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    assert (choose_kind(None), choose_kind("cpu"), choose_kind("cuda")) == ("cuda", "cpu", "cuda")
    sample.hide_gpu(monkeypatch)
    assert choose_kind(None) == "cpu"
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        choose_kind("cuda")
    with pytest.raises(UnknownNameError, match="device='tpu' is unknown; allowed: cpu, cuda"):
        choose_kind("tpu")


def test_this_cpu_has_a_name_a_cache_and_threads() -> None:
    found = read_processor("cpu")
    assert found.kind == "cpu"
    assert found.name == platforms.processor_name()  # one text, in tables and analyses
    assert found.cache_bytes >= 2**18
    assert found.units >= 1


@pytest.mark.parametrize(
    ("texts", "room"),
    [
        ({"/proc/meminfo": MEMINFO}, 20000000 * 1024),
        (
            {"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "5\n"},
            20000000 * 1024,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/sys/fs/cgroup/memory.max": "1000000\n",
                "/sys/fs/cgroup/memory.current": "400000\n",
            },
            600000,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "100\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "200\n",
            },
            0,
        ),
    ],
    ids=["whole machine", "no limit", "limit", "over its limit"],
)
def test_four_fifths_of_the_free_memory_may_be_asked_for(
    texts: dict[str, str], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, texts)
    assert usable_bytes(Processor("cpu", "a CPU", 1, 1)) == int(0.8 * room)


def test_a_system_that_tells_nothing_still_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {})
    assert usable_bytes(Processor("cpu", "a CPU", 1, 1)) > 2**20


def test_its_words_say_what_the_numbers_are() -> None:
    assert str(Processor("cpu", "a CPU", 2**25, 1)) == "a CPU, 1 thread, 32 MiB of last-level cache"
    assert str(Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)) == "NVIDIA H200, 132 SMs, 60 MiB of L2"


def test_the_text_of_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert processor._text(str(tmp_path / "none")) == ""
