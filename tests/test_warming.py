"""``warm``: what it compiles, for the GPU here or for another, and that nothing compiles after it and the seal."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

import autotune
from autotune import platforms, warming
from autotune.device import Device
from autotune.dispatch import events, pick_for_device
from autotune.dispatch import kernel as kernel_module
from autotune.errors import MissingDependencyError, SealedError, UnknownNameError, UsageError
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status
from tests import sample
from tests.dispatch.tables import PAGED, SLOWER, Tables, default_of, defaults_of, served_from

SHAPE: Final = sample.shape()


class RefusalError(Exception):
    """One of Triton's, as far as dispatch can see."""


RefusalError.__module__ = "triton.runtime.errors"


class Binary:
    """A compiled kernel, which is loaded by whoever asks for its ``run``."""

    def __init__(self, config: Config, *, is_too_large: bool) -> None:
        self.config, self.is_too_large, self.is_loaded = config, is_too_large, False

    @property
    def run(self) -> None:
        if self.is_too_large:
            raise RefusalError("out of resource: shared memory")
        self.is_loaded = True


class Compiler:
    """Kernels that compile at their first call as Triton's do, one binary for the output and one for all of them."""

    def __init__(self) -> None:
        self.too_large: list[Config] = []
        self.binaries: dict[tuple[Config, Shape, bool], Binary] = {}
        self.caches: list[Shape] = []  # for which ``append_kv`` was compiled

    def warmup(self, config: Config, shape: Shape, *, every_output: bool = False) -> list[Binary]:
        return [self._compile((config, shape, every_output), is_ahead=True)]

    def bind(self, config: Config, shape: Shape) -> Callable[..., Config]:
        def call(*tensors: object, return_lse: bool = False) -> Config:
            return self._compile((config, shape, return_lse), is_ahead=False).config

        return call

    def _compile(self, key: tuple[Config, Shape, bool], *, is_ahead: bool) -> Binary:
        if key not in self.binaries:
            if not is_ahead:
                events.begin_compile("forward")
            self.binaries[key] = Binary(key[0], is_too_large=key[0] in self.too_large)
            events.note_compile("forward", 0.5, is_ahead)
        return self.binaries[key]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    """Tables on a machine with an H200, counted anew."""
    monkeypatch.setattr(events, "_counts", events._Counts())
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    with served_from(Tables(tmp_path)) as tables:
        yield tables
    autotune.unseal()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: compiler)
    monkeypatch.setattr(warming, "_warm_append", compiler.caches.append)
    return compiler


def test_eight_threads_compile_nothing_after_warm_and_seal(tables: Tables, compiler: Compiler) -> None:
    tables.ship(sample.trial())
    shapes = [sample.shape(batch=batch) for batch in (1, 15, 16)] + [PAGED]
    found = autotune.warm(shapes, every_output=True)
    assert [(each.operation, each.shape, each.rung, each.failure) for each in found] == [
        ("flash_attention", shapes[0], "default", ""),
        ("flash_attention", shapes[1], "nearest", ""),
        ("flash_attention", shapes[2], "exact", ""),
        ("paged_decode", PAGED, "default", ""),
    ]
    assert all(binary.is_loaded for binary in compiler.binaries.values())
    before = autotune.stats()
    assert (before.compiles, before.compile_seconds) == (8, 4.0)
    assert compiler.caches == [PAGED]
    autotune.seal()

    def serve(number: int) -> None:
        shape = shapes[number % 4]
        operation = "paged_decode" if shape is PAGED else "flash_attention"
        kernel = pick_for_device(shape, 0, operation)  # as the functions do
        assert kernel(return_lse=number % 2 == 0) == kernel.config == autotune.get_kernel(shape)()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(serve, range(64)))
    assert autotune.stats() == before


def test_what_was_not_warmed_is_an_error_after_the_seal(tables: Tables, compiler: Compiler) -> None:
    tables.ship(sample.trial())
    autotune.warm(SHAPE)
    autotune.seal()
    kernel = autotune.get_kernel(SHAPE)
    kernel()
    with pytest.raises(SealedError, match="forward would compile after seal"):
        kernel(return_lse=True)
    with pytest.raises(SealedError, match="is missed after seal"):
        autotune.get_kernel(sample.shape(batch=1))
    autotune.warm([SHAPE, sample.shape(batch=1)], every_output=True)  # which is ahead of time at any time
    kernel(return_lse=True)
    autotune.get_kernel(sample.shape(batch=1))()
    assert autotune.stats().late_misses == autotune.stats().late_compiles == 0


def test_a_config_that_does_not_fit_gives_way_ahead_of_the_call(tables: Tables, compiler: Compiler) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    compiler.too_large = [sample.FAST]
    with pytest.warns(RuntimeWarning, match="refuses"):
        (found,) = autotune.warm(SHAPE)
    assert (found.candidate, found.rung, found.failure) == (Candidate("triton", SLOWER), "nearest", "")
    assert autotune.get_kernel(SHAPE, operation="flash_attention").config == SLOWER


def test_a_default_that_does_not_fit_is_said(tables: Tables, compiler: Compiler) -> None:
    compiler.too_large = defaults_of(SHAPE)
    with pytest.warns(RuntimeWarning, match="refuses"):
        (found,) = autotune.warm(SHAPE)
    assert found.failure == "RefusalError: out of resource: shared memory"


def test_what_a_library_compiles_at_its_first_call_is_said(
    tables: Tables, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CONFIG", "flash_attention/flex")
    autotune.reload()
    (found,) = autotune.warm(SHAPE)
    assert (found.candidate.implementation, found.failure) == ("flex", "its library compiles it at its first call")


class Pool:
    """A compile server that refuses some configs, and notes what it is asked for."""

    asked: Final[list[tuple[str, Shape, Config, bool]]] = []
    refused: Final[set[Config]] = set()

    def __init__(self, device: Device, *, jobs: int, timeout: float) -> None:
        self.device = device

    def open(self, operation: Any, shape: Shape) -> None:
        self.shape = shape

    def submit(self, candidate: Candidate, *, every_output: bool = False) -> None:
        self.candidate = candidate
        self.asked.append((self.device.name, self.shape, candidate.config, every_output))

    def receive(self, timeout: float) -> Outcome | None:
        is_refused = self.candidate.config in self.refused
        status, message = (Status.OUT_OF_RESOURCES, "too large") if is_refused else (Status.OK, "")
        return Outcome(candidate=self.candidate, status=status, message=message)

    def close(self) -> None:
        self.asked.append(("closed", self.shape, Config(), False))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> type[Pool]:
    monkeypatch.setattr(warming, "CompilePool", Pool)
    Pool.asked.clear()
    Pool.refused.clear()
    return Pool


def test_another_device_is_compiled_for_by_processes_of_their_own(tables: Tables, pool: type[Pool]) -> None:
    tables.ship(sample.trial())
    (found,) = autotune.warm([("flash_attention", SHAPE)], device="A100", every_output=True)
    a100, config = platforms.known_device("A100"), found.candidate.config
    assert a100 is not None
    assert (found.device, found.rung, found.failure) == ("NVIDIA A100-SXM4-80GB", "default", "")
    kernel = autotune.get_kernel(SHAPE, device="A100")
    assert kernel.config == config
    asked = [("NVIDIA A100-SXM4-80GB", SHAPE, config, with_all) for with_all in (False, True)]
    assert pool.asked == [*asked, ("closed", SHAPE, Config(), False)]


def test_without_a_gpu_the_next_candidate_is_compiled_where_one_is_refused(
    tables: Tables, pool: type[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.hide_gpu(monkeypatch)
    tables.ship(sample.trial())
    pool.refused.add(sample.FAST)
    (found,) = autotune.warm(SHAPE, device="h200")
    assert (found.candidate.config, found.rung, found.failure) == (default_of(SHAPE), "default", "")
    pool.refused.update(defaults_of(SHAPE))
    (found,) = autotune.warm(SHAPE, device="h200")
    assert (found.candidate.config, found.rung) == (sample.FAST, "exact")
    assert found.failure == "out_of_resources: too large"


def test_wrong_questions_are_refused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="device='Voodoo 2' is unknown; known: NVIDIA A100-SXM4-80GB, "):
        autotune.warm(SHAPE, device="Voodoo 2")
    with pytest.raises(UsageError, match="shapes='all' is of type str"):
        autotune.warm("all")  # type: ignore[arg-type]
    sample.hide_gpu(monkeypatch)
    with pytest.raises(MissingDependencyError, match="no GPU is visible; name a device"):
        autotune.warm(SHAPE)


SHAPES: Final = """
import autotune
shape = autotune.AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
"""
CONTAINER: Final = f"{SHAPES}print(*[each.failure for each in autotune.warm(shape, device='h200')])"
# A server on an H200 that is not there: Triton compiles for it in earnest, and what it would launch is noted.
SERVER: Final = f"""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import os
import torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from autotune import eager_calls, functional, platforms
from autotune.device import NVIDIA_H200, architecture
from autotune.executor.compiler import target_driver
{SHAPES}
platforms.has_gpu, platforms.current_index, platforms.current_device = lambda: True, lambda: 0, lambda i=0: NVIDIA_H200
functional.is_traced, eager_calls.gpu_of = lambda *tensors: False, lambda tensor: 0  # for all that tensors are meta
driver.set_active(target_driver(architecture("sm_90")))
launched = []
CompiledKernel._init_handles = lambda self: None
CompiledKernel.run = property(lambda self: lambda *arguments: launched.append(self.name))

def binaries():
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))

q, k, v = (torch.empty(16, 1024, 16, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
found = binaries()
autotune.warm(shape)
print(found, binaries(), autotune.stats().compiles)
autotune.seal()
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda _: autotune.attention(q, k, v, causal=True), range(32)))
print(len(launched), autotune.stats().compiles)
try:
    autotune.attention(q, k, v, causal=True, return_lse=True)
except autotune.SealedError as error:
    print(error)
autotune.warm(shape, every_output=True)
autotune.attention(q, k, v, causal=True, return_lse=True)
print(len(launched), autotune.stats().compiles, autotune.stats().late_compiles)
"""


@pytest.mark.slow
def test_triton_compiles_nothing_after_warm_and_seal_and_a_server_finds_what_a_container_compiled(
    tmp_path: Path,
) -> None:
    given = {"AUTOTUNE_HOME": str(tmp_path / "home"), "TRITON_CACHE_DIR": str(tmp_path / "cache")}

    def printed(code: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert printed(CONTAINER) == [""]
    assert printed(SERVER) == [
        "1 1 1",  # loaded from the cache, which has one binary as before
        "32 1",
        "flash_attention_forward would compile after seal(): warm the shape, its dtypes and every output before",
        "33 2 0",
    ]


# The same server appends to paged caches. Tensors of the meta device have nowhere to be checked for.
APPENDING: Final = """
import autotune, torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from autotune import eager_calls, platforms
from autotune.device import NVIDIA_H200, architecture
from autotune.executor.compiler import target_driver
from autotune.kernels.paged_cache import call
from autotune.kernels.paged_cache.layout import allocate_caches

platforms.has_gpu, platforms.current_index, platforms.current_device = lambda: True, lambda: 0, lambda i=0: NVIDIA_H200
call.check_device = lambda *given: None
driver.set_active(target_driver(architecture("sm_90")))
launched = []
CompiledKernel._init_handles = lambda self: None
CompiledKernel.run = property(lambda self: lambda *arguments: launched.append(self.name))

def append(shape, tokens, slots_dtype):
    k, v = (torch.empty(tokens, 4, shape.head_dim, dtype=torch.bfloat16, device="meta") for _ in range(2))
    k_cache, v_cache = allocate_caches(shape, 8, "meta")
    sizes = {"int8": k_cache.shape[:3], "float8_e5m2": (4,)}.get(shape.kv_dtype)
    scale = None if sizes is None else torch.empty(sizes, device="meta")
    slots = torch.empty(tokens, dtype=slots_dtype, device="meta")
    options = {"layout": shape.layout, "k_scale": scale, "v_scale": scale, "check": False}
    eager_calls.append(k, v, k_cache, v_cache, slots, **options)

kinds = [("bfloat16", "NHD"), ("int8", "HND"), ("float8_e5m2", "NHD")]
sizes = {"batch": 4, "heads": 8, "kv_heads": 4, "max_context": 256}
shapes = [autotune.PagedShape(kv_dtype=kind, layout=layout, head_dim=64, **sizes) for kind, layout in kinds]
print(*[each.failure for each in autotune.warm(shapes)])
before = autotune.stats()
autotune.seal()
for shape in shapes:
    for tokens in (1, 7, 16):
        for slots_dtype in (torch.int32, torch.int64):
            append(shape, tokens, slots_dtype)
print(launched.count("store_tokens"), autotune.stats() == before)
try:
    append(autotune.PagedShape(head_dim=128, **sizes), 1, torch.int64)
except autotune.SealedError as error:
    print(error)
"""


@pytest.mark.slow
def test_appending_compiles_nothing_after_warm_and_seal(tmp_path: Path) -> None:
    given = {"AUTOTUNE_HOME": str(tmp_path / "home"), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    code = [sys.executable, "-c", APPENDING]
    done = subprocess.run(code, env=os.environ | given, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "  ",
            "18 True",
            "store_tokens would compile after seal(): warm the shape, its dtypes and every output before",
        ],
    ), done.stderr


@pytest.mark.gpu
def test_a_gpu_compiles_nothing_after_warm_and_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(events, "_counts", events._Counts())
    shape = sample.shape(512, batch=3)
    (found,) = autotune.warm(shape, every_output=True)
    assert found.failure == ""
    sizes = (shape.batch, shape.seq_q, shape.heads, shape.head_dim)
    q, k, v = (torch.randn(sizes, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    before = autotune.stats()
    assert before.compiles >= 2
    autotune.seal()
    try:
        with ThreadPoolExecutor(8) as pool:
            outs = list(pool.map(lambda _: autotune.attention(q, k, v, causal=True, return_lse=True)[0], range(16)))
        assert all(torch.equal(out, outs[0]) for out in outs)
        torch.testing.assert_close(autotune.get_kernel(shape)(q, k, v), outs[0])
        assert autotune.stats() == before
        with pytest.raises(SealedError):
            autotune.attention(q.half(), k.half(), v.half(), causal=True)
    finally:
        autotune.unseal()


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("slots_dtype", ["int32", "int64"])
def test_a_gpu_appends_after_warm_and_seal(monkeypatch: pytest.MonkeyPatch, kv_dtype: str, slots_dtype: str) -> None:
    import torch

    monkeypatch.setattr(events, "_counts", events._Counts())
    sizes: dict[str, Any] = {"page_size": 16, "kv_heads": 4, "head_dim": 128}
    warmed = autotune.PagedShape(batch=4, heads=8, max_context=256, kv_dtype=kv_dtype, **sizes)
    (found,) = autotune.warm(warmed)
    assert found.failure == ""

    def append(**changed: int) -> None:
        cache = autotune.PagedKVCache(pages=8, dtype=kv_dtype, **{**sizes, **changed})
        k, v = torch.randn(2, 7, *cache.k_cache.shape[2:], dtype=torch.bfloat16, device="cuda")
        slots = torch.arange(7, dtype=getattr(torch, slots_dtype), device="cuda")
        autotune.append_kv(k, v, cache.k_cache, cache.v_cache, slots, k_scale=cache.k_scale, v_scale=cache.v_scale)

    autotune.seal()
    try:
        before = autotune.stats()
        append()
        assert autotune.stats() == before
        with pytest.raises(SealedError, match="store_tokens would compile after seal"):
            append(page_size=24)
    finally:
        autotune.unseal()
