"""The chosen device: open it, load a kernel, launch it, verify the result."""

from __future__ import annotations

import re
import struct
from contextlib import ExitStack
from typing import Final

from tensorwasm import ptx
from tensorwasm.doctor.facts import CheckResult, MachineFacts, Results, Status
from tensorwasm.errors import InternalError, TensorWasmError
from tensorwasm.gpu.device.port import Device
from tensorwasm.values import Deadline, LaunchConfig, Region

_LENGTH: Final = 1000
_BLOCK: Final = 128
_LIMIT_S: Final = 30.0

_VECTOR_ADD: Final = """
.version {version[0]}.{version[1]}
.target {target}
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 count)
{{
  .reg .pred %p<2>;
  .reg .f32 %f<4>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<11>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [c];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd4, %r5, 4;
  cvta.to.global.u64 %rd5, %rd1;
  cvta.to.global.u64 %rd6, %rd2;
  cvta.to.global.u64 %rd7, %rd3;
  add.u64 %rd8, %rd5, %rd4;
  add.u64 %rd9, %rd6, %rd4;
  add.u64 %rd10, %rd7, %rd4;
  ld.global.f32 %f1, [%rd8];
  ld.global.f32 %f2, [%rd9];
  add.rn.f32 %f3, %f1, %f2;
  st.global.f32 [%rd10], %f3;
DONE:
  ret;
}}
"""


def check_emulator(machine: MachineFacts) -> Results:
    """Launch and verify a kernel on the emulator, which needs no GPU, unless it is the chosen device."""
    chosen, _ = machine.opened
    if chosen is not None and chosen.info.kind == "emulator":
        return None
    try:
        device, _ = machine.system.open("emulator")
    except TensorWasmError as error:
        seen, _, fix = error.message.partition("; ")
        return CheckResult("emulator", Status.WARN, seen, "It is what runs kernels without a GPU.", fix)
    try:
        return CheckResult("emulator", Status.OK, verify(device, ""))
    except TensorWasmError as error:
        return machine.diagnosed("emulator", Status.WARN, f"{error.kind}: {error.message}")
    finally:
        device.close()


def check_device(machine: MachineFacts) -> Results:
    """Open the chosen device."""
    device, reason = machine.opened
    brief, _, rest = reason.partition("; ")
    if device is None:
        found = machine.diagnosed("device", Status.FAIL, reason)
        return CheckResult("device", Status.FAIL, brief, found.diagnosis, found.fix or rest)
    info = device.info
    capability, version = "sm_{}{}".format(*info.compute_capability), "{}.{}".format(*info.ptx_version)
    return CheckResult("device", Status.OK, f"{info.kind}: {info.name}, {capability}, PTX up to {version} ({brief})")


def check_managed(machine: MachineFacts) -> Results:
    """Report whether processor and GPU may access managed memory at once."""
    device, _ = machine.opened
    if device is None or device.info.kind != "cuda":
        return None
    if device.info.concurrent_managed_access:
        return CheckResult("managed memory", Status.OK, "processor and GPU may touch it at once")
    why = "Windows and WSL move managed memory only when no kernel runs." if machine.windows or machine.wsl else ""
    return CheckResult("managed memory", Status.INFO, "not while a kernel runs; registered memory is used", why)


def check_isolation(machine: MachineFacts) -> Results:
    """Report what keeps tenants apart on the GPU unless somebody chooses (`tensorwasm.runtime.WorkerExecutor`)."""
    device, _ = machine.opened
    if device is None or device.info.kind != "cuda":
        return None
    if machine.linux and machine.ptxas is not None and device.windows.available:
        return CheckResult(
            "isolation", Status.OK, "guarded: kernels of all tenants share the GPU, each in its own window"
        )
    cost = "A process takes some 600 MiB of the GPU and a second to start, and four fit."
    seen = "process: each tenant has a process on the GPU of its own"
    if machine.linux and machine.ptxas is None:
        why = (
            f"Tenants whose kernels are guarded share the GPU, but ptxas has to compile them, and there is none. {cost}"
        )
        packages = "nvidia-cuda-nvcc (for drivers from 580 on) or nvidia-cuda-nvcc-cu12 (for older ones)"
        fix = f"pip install {packages}, or set TENSOR_WASM_PTXAS to the path of a toolkit's ptxas."
        return CheckResult("isolation", Status.WARN, seen, why, fix)
    why = f"Guarded kernels need windows of addresses with memory of the host in them, which this driver lacks. {cost}"
    if machine.linux:
        seen, fix = (
            "guarded, which this driver cannot do",
            "Upgrade the driver, or set TENSOR_WASM_API_ISOLATION=process.",
        )
        return CheckResult("isolation", Status.WARN, seen, why, fix)
    return CheckResult("isolation", Status.INFO, seen, why)


def check_launch(machine: MachineFacts) -> Results:
    """Load, launch and verify a kernel on the chosen device."""
    device, _ = machine.opened
    if device is None:
        return None
    try:
        seen = verify(device, machine.system.environment.get("CUDA_ARCH", ""))
    except TensorWasmError as error:
        return machine.failed("load, launch, verify", error)
    return CheckResult("load, launch, verify", Status.OK, seen)


def verify(device: Device, architecture: str) -> str:
    """Add two vectors on a device, compare the sums and return a summary.

    Args:
        device: the device.
        architecture: value of ``CUDA_ARCH``, used as the target if the device supports it.

    Raises:
        TensorWasmError: the device fails, or does not end in time.
        InternalError: the device computes something else.
    """
    target = _target(device, architecture)
    deadline = Deadline.after(_LIMIT_S)
    first = struct.pack(f"<{_LENGTH}f", *(0.5 * index for index in range(_LENGTH)))
    second = struct.pack(f"<{_LENGTH}f", *(float(_LENGTH - index) for index in range(_LENGTH)))
    expected = struct.pack(f"<{_LENGTH}f", *(_LENGTH - 0.5 * index for index in range(_LENGTH)))
    found = bytearray(len(expected))
    with ExitStack() as held:
        loaded = device.load(ptx.parse(_source(device, target)), deadline)
        held.callback(device.unload, loaded)
        stream = device.open_stream()
        held.callback(device.close_stream, stream)
        addresses = []
        for data in (first, second, bytes(len(expected))):
            addresses.append(device.allocate(len(data)))
            held.callback(device.free, addresses[-1])
            device.write(addresses[-1], data, stream)
        args = [*(address.to_bytes(8, "little") for address in addresses), _LENGTH.to_bytes(4, "little")]
        regions = [Region(address, len(expected), host=False) for address in addresses]
        config = LaunchConfig((-(-_LENGTH // _BLOCK), 1, 1), (_BLOCK, 1, 1))
        device.launch(loaded, "vector_add", config, args, regions, stream, deadline)
        device.synchronize(stream, deadline)
        device.read(addresses[-1], memoryview(found), stream)
    wrong = sum(found[at : at + 4] != expected[at : at + 4] for at in range(0, len(expected), 4))
    if wrong:
        raise InternalError(f"vector_add for {target}: {wrong} of {_LENGTH} sums are wrong")
    return f"vector_add for {target}: {_LENGTH} sums, all right"


def _target(device: Device, architecture: str) -> str:
    """Return the target that ``CUDA_ARCH`` names if the device supports it, otherwise the oldest."""
    found = re.fullmatch(r"sm_(\d{1,2})(\d)", architecture)
    if found is None or not (7, 0) <= (int(found[1]), int(found[2])) <= device.info.compute_capability:
        return "sm_70"
    return architecture


def _source(device: Device, target: str) -> bytes:
    version = (6, 3) if target == "sm_70" else device.info.ptx_version
    return _VECTOR_ADD.format(version=version, target=target).encode("ascii")
