"""The engine finds a cluster, or starts one of its own; what cannot be had is refused by name."""

import io
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError, TableError, UsageError
from autotune.grid import ray_connection
from autotune.grid.ray_engine import run_on_ray
from tests.grid.engine_run import DONE, H100, H200, Run, node
from tests.grid.fake_ray import FakeRay
from tests.grid.recorded_grid import task

pytestmark = pytest.mark.usefixtures("quick_looks")


class Starting(FakeRay):
    """No cluster answers; one that is started here has a node with what was asked for."""

    inits: list[dict[str, Any]]

    def is_initialized(self) -> bool:
        self._private = SimpleNamespace(ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True))
        return False

    def init(self, **options: Any) -> None:
        listens = self._private.ray_constants.ENABLE_RAY_CLUSTER
        self.inits = [*getattr(self, "inits", []), {**options, "listens": listens}]
        if options["address"] != "local":
            raise ConnectionError
        self.living["own"] = {"CPU": 8, "GPU": 1, **options["resources"]}

    def shutdown(self) -> None:
        self.living.clear()


@pytest.mark.parametrize(("replay", "labels"), [(False, {H200}), (True, {H200, H100})])
def test_a_cluster_of_our_own_has_the_label_of_the_gpu_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replay: bool, labels: set[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
    ray = Starting({}, lambda *_: DONE)
    outcome = Run(monkeypatch, ray, tmp_path).run([task(0), task(1, device=H100)], replay=replay)
    assert set(ray.inits[1]["resources"]) == labels
    assert (ray.inits[1]["_node_ip_address"], ray.inits[1]["listens"]) == ("127.0.0.1", False)
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER
    assert outcome.counts["done"] == len(labels)
    expected = [] if replay else [f"no Ray cluster is there, and this host has no GPU '{H100}'"]
    assert [message for _, message in outcome.failures] == expected


def test_a_named_cluster_that_does_not_answer_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{ray_connection.__name__}.socket.create_connection", lambda *_: io.BytesIO())
    run = Run(monkeypatch, ray := Starting({}, lambda *_: DONE), tmp_path)
    with pytest.raises(UsageError, match="address='head:1': no Ray cluster answers"):
        run.run([task(0)], address="head:1")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(UsageError, match="RAY_ADDRESS='head:6379': no Ray cluster answers"):
        run.run([task(0)])
    assert len(ray.inits) == 2


@pytest.mark.parametrize("name", ["address", "RAY_ADDRESS"])
def test_an_address_that_ray_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    def init(*_: object, **options: object) -> None:
        raise ValueError(f"Invalid address format: {options['address']}")

    monkeypatch.setattr(Starting, "init", init)
    run = Run(monkeypatch, Starting({}, lambda *_: DONE), tmp_path)
    if name == "RAY_ADDRESS":
        monkeypatch.setenv(name, "nonsense")
    with pytest.raises(UsageError, match=f"^{name}='nonsense' is not allowed; expected auto, or HOST:PORT$"):
        run.run([task(0)], address="nonsense" if name == "address" else None)


def test_an_address_where_nothing_listens_is_refused_before_ray_tries_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, ray := Starting({}, lambda *_: DONE), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(
            UsageError, match=rf"address='{address}': no Ray cluster answers there within 10 s \(.*refused"
        ):
            run.run([task(0)], address=address)
    assert not hasattr(ray, "inits")


def test_a_place_that_cannot_be_written_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ray = FakeRay({"a": node()}, lambda *_: DONE)
    run = Run(monkeypatch, ray, tmp_path / "file" / "place")
    with pytest.raises(TableError, match=r"cannot be listed: Not a directory"):
        run.run([task(0)])
    assert ray.submitted == []


def test_without_ray_an_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r'`pip install "attention-autotune\[ray\]"`'):
        run_on_ray([task(0)], tmp_path)


def test_the_engine_imports_without_ray() -> None:
    code = "import sys; sys.modules['ray'] = None; import autotune.grid.ray_engine"
    subprocess.run([sys.executable, "-c", code], check=True)
