"""The way of a launch through cuda.core down to the driver: code, kernels, streams, devices, arguments and errors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.cuda import device, origin, run
from gqc.runtime.cuda.target import Kernel, launch
from tests.cuda.conftest import FakeGpus

ABSMAX = Kernel("absmax_f32", "pip")
X = torch.tensor([1.0, -3.0, 2.0])


@pytest.fixture
def fatbin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fatbin of which only the header matters, since the fake driver runs what the emulator holds."""
    file = tmp_path / "gqc_cuda.fatbin"
    one = bytes.fromhex("50ed55ba 0100 1000 0400000000000000") + b"code"
    file.write_bytes(2 * one)
    monkeypatch.setattr(origin, "fatbin", lambda: file)
    monkeypatch.setattr("gqc.runtime.cuda.code.fatbin", lambda: file)
    return file


def largest(gpu: device.Gpu) -> float:
    out = torch.zeros(())
    launch(gpu, ABSMAX, 1, 256, X.data_ptr(), X.numel(), out.data_ptr())
    return out.item()


def test_ops_run_on_the_stream_and_device_of_their_tensors(gpus: FakeGpus, fatbin: Path) -> None:
    first, second = gpus.make(0), gpus.make(1)
    for gpu, where in (
        (first, "device 0, stream 0"),
        (second, "device 1, stream 20480"),
        (first, "device 0, stream 0"),
    ):
        with kernels.emulated(gpu):
            assert torch.ops.gqc.absmax(X).item() == 3
        assert gpus.last_launch == f"absmax_f32 on {where}"  # and its kernel was loaded before
        assert gpus.index == 0
    gpus.stream[0] = 0x7000
    assert largest(first) == 3
    assert gpus.last_launch == "absmax_f32 on device 0, stream 28672"


def test_launch_from_a_thread_without_a_context(gpus: FakeGpus, fatbin: Path) -> None:
    gpu, results = gpus.make(0), []
    thread = threading.Thread(target=lambda: results.append(largest(gpu)))
    thread.start()
    thread.join()
    assert results == [3]


def test_failing_launch_names_kernel_sizes_and_device(gpus: FakeGpus, fatbin: Path) -> None:
    gpu = gpus.make(1)
    gpus.status = 700
    with pytest.raises(KernelError, match=r"absmax_f32\(0x[0-9a-f]+, 3, 0x[0-9a-f]+\) with \(1, 1, 1\) blocks of 256"):
        largest(gpu)
    gpus.status = 0
    assert largest(gpu) == 3


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (Kernel("absmax_f64", "pip"), "has no kernel absmax_f64"),
        (Kernel("absmax_f32", "pif"), r"takes arguments of \[8, 8, 8\] bytes and gqc passes \[8, 8, 4\]"),
    ],
)
def test_code_that_does_not_fit_the_table_is_refused(gpus: FakeGpus, fatbin: Path, kernel: Kernel, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        launch(gpus.make(), kernel, 1, 256, X.data_ptr(), 3, 0)


def test_capture_of_a_cuda_graph_refuses_what_only_a_first_call_does(gpus: FakeGpus, fatbin: Path) -> None:
    gpu = gpus.make()
    gpus.capturing = True
    assert largest(gpu) == 3
    with pytest.raises(KernelError, match="run the step once before capturing"):
        gpu.upload((1, 2))
    with pytest.raises(KernelError, match=r"first call on cuda:1 loads its kernels.*run the step once"):
        gpus.make(1)


def test_fatbin_without_code_for_the_gpu_and_without_nvrtc_says_both(
    gpus: FakeGpus, fatbin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("libnvrtc was not found")

    monkeypatch.setattr("gqc.runtime.cuda.code._from_sources", missing)
    gpus.find_code_in_fatbins(False)
    with pytest.raises(KernelError, match=r"Fake GPU \(sm_90\).*fatbin: .*NO_BINARY_FOR_GPU; nvrtc: libnvrtc was not"):
        gpus.make()


def test_damaged_fatbin(gpus: FakeGpus, fatbin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQC_CUDA", "fatbin")
    fatbin.write_bytes(fatbin.read_bytes()[:-1])
    with pytest.raises(KernelError, match="damaged at byte 20"):
        gpus.make()
    fatbin.unlink()
    with pytest.raises(KernelError, match="No such file"):
        gpus.make()


def test_nvrtc_compiles_what_the_fatbin_lacks_once(
    gpus: FakeGpus, fatbin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:
        pytest.skip(f"no NVRTC: {str(error).splitlines()[0]}")
    gpus.find_code_in_fatbins(False)
    assert largest(gpus.make()) == 3
    cached = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file() and file != fatbin}
    assert len(cached) >= len(list(origin.sources().glob("cuda/*.cu")))
    monkeypatch.setattr("gqc.runtime.cuda.code.Program", None)
    monkeypatch.setenv("GQC_CUDA", "nvrtc")
    assert largest(gpus.make()) == 3


def test_forced_route_is_checked(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQC_CUDA", "ptx")
    with pytest.raises(KernelError, match="GQC_CUDA='ptx': choose 'fatbin' or 'nvrtc'"):
        gpus.make()


def test_without_cuda_core_the_extra_is_named(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.core", None)
    with pytest.raises(KernelError, match=r"needs cuda-core for tensors on cuda:0.*pip install 'gqc\[cuda\]'"):
        gpus.make()


def test_other_devices_have_no_kernels() -> None:
    with pytest.raises(KernelError, match="no kernels for meta: move the tensors to the CPU or a CUDA device"):
        run(None, torch.device("meta"), "absmax", 0, False, 1, 0)


def test_seconds_are_those_of_the_second_run_and_not_measured_in_a_capture(
    gpus: FakeGpus, fatbin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return 5.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    gpu = gpus.make(1)
    assert gpu.seconds(lambda: log.append(f"run on {gpus.index}")) == 5e-3
    assert log == ["run on 1", "record", "run on 1", "record", "wait"]
    gpus.capturing = True
    assert gpu.seconds(lambda: log.append("run")) is None
    assert len(log) == 5
