"""Known error messages with their causes and fixes: a table of which the first row that matches applies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known error message, its cause and its fix."""

    name: str  # stable: documents and tests use it
    group: str  # where the message comes from
    message: str  # an example
    pattern: str  # regular expression that finds the message; case is ignored
    cause: str
    fix: str


_LOADER: Final = "loader and linker"
_VERSIONS: Final = "driver and toolkit versions"
_DEVICE: Final = "device at run time"
_WSL: Final = "WSL2"
_BUILD: Final = "building packages"
_MPS: Final = "MPS"

DIAGNOSES: Final = (
    Diagnosis(
        "wsl-libcuda",
        _WSL,
        "WSL/Windows could not load the dynamic library 'libcuda.so.1'",
        r"could not load the dynamic library 'libcuda\.so|/usr/lib/wsl/lib/libcuda\.so\.1 is missing",
        "The Windows driver is too old to provide its library to WSL, or was upgraded after WSL had started.",
        "Install Windows driver 555.85 or newer, then run 'wsl --shutdown' in PowerShell and open WSL again.",
    ),
    Diagnosis(
        "wsl-nvidia-smi",
        _WSL,
        "nvidia-smi: command not found (inside WSL)",
        r"nvidia-smi: (?:command )?not found \(inside WSL\)",
        "In WSL nvidia-smi comes from Windows; the Linux package nvidia-utils does not work there and hides it.",
        "sudo apt-get purge 'nvidia-utils-*', then use /usr/lib/wsl/lib/nvidia-smi, which Windows provides.",
    ),
    Diagnosis(
        "nvidia-smi-not-found",
        _LOADER,
        "nvidia-smi: command not found",
        r"nvidia-smi: (?:command )?not found",
        "The driver, or its package of tools, is not installed, or this is a container that was started without GPUs.",
        "Install the driver (Ubuntu: sudo apt-get install nvidia-driver-550; reboot). Docker: --gpus all.",
    ),
    Diagnosis(
        "libcuda-not-found",
        _LOADER,
        "libcuda.so: cannot open shared object file: No such file or directory",
        r"libcuda\.so(?:\.1)?: cannot open shared object file|libcuda\.so\.1 not found",
        "The driver is not installed, or its folder is not where the loader looks.",
        "Install the driver (Ubuntu: sudo apt-get install nvidia-driver-550; reboot) and check 'ldconfig -p | grep "
        "libcuda'. If the file is there: export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH. In a "
        "container: docker run --gpus all.",
    ),
    Diagnosis(
        "nvcuda-not-found",
        _LOADER,
        "cuda.dll was not found",
        r"(?:nv)?cuda\.dll(?:'| was)? (?:was )?not found|could not find module '(?:nv)?cuda\.dll'",
        "The driver is not installed, or C:\\Windows\\System32, where its nvcuda.dll lives, is not on the PATH.",
        "Install the driver again with NVIDIA's installer and see that nvidia-smi.exe runs in a new shell.",
    ),
    Diagnosis(
        "build-without-toolkit",
        _BUILD,
        "failed to run custom build command for cust",
        r"failed to run custom build command|failed (?:to build|building wheel).{0,40}cuda[-_]bindings|"
        r"CUDA_(?:HOME|PATH)[^\n]{0,40} not (?:set|found)",
        "Something is compiled against the toolkit, and CUDA_ROOT, CUDA_PATH or CUDA_HOME (the first that is set "
        "counts) names no folder with bin/nvcc. TensorWasm itself compiles nothing: pip found no wheel of "
        "cuda-bindings for this Python and tried to build one.",
        "Use a Python that has wheels: python -m pip install --only-binary :all: 'tensor-wasm[cuda]'. To build "
        "anyway, set CUDA_HOME to the toolkit's folder.",
    ),
    Diagnosis(
        "no-import-library",
        _BUILD,
        "LINK : fatal error LNK1181: cannot open input file 'cuda.lib'",
        r"LNK1181.{0,40}cuda\.lib",
        "The MSVC linker does not find the toolkit's lib\\x64: a package is being built from source outside a Visual "
        "Studio environment.",
        "Install wheels instead (pip install --only-binary :all: 'tensor-wasm[cuda]'). To build anyway, use the x64 "
        "Native Tools Command Prompt for VS 2022, or run vcvars64.bat first.",
    ),
    Diagnosis(
        "no-msvc-linker",
        _BUILD,
        "error: linker 'link.exe' not found",
        r"link\.exe['`\"]? not found|Microsoft Visual C\+\+ 14\.\d or greater is required",
        "A package is being built from source and the Visual Studio Build Tools are not installed or not on the PATH.",
        "Install wheels instead (pip install --only-binary :all: 'tensor-wasm[cuda]'). To build anyway, use the x64 "
        "Native Tools Command Prompt for VS 2022, or run vcvars64.bat first.",
    ),
    Diagnosis(
        "no-libclang",
        _BUILD,
        "Unable to find libclang",
        r"unable to find libclang",
        "A package that generates bindings from C headers is being built from source. TensorWasm needs none.",
        "Install wheels instead; to build that package, install LLVM and set LIBCLANG_PATH to the folder of libclang.",
    ),
    Diagnosis(
        "no-cuda-header",
        _BUILD,
        "fatal error: 'cuda.h' file not found",
        r"fatal error:? '?cuda\.h'?:? (?:file not found|no such file)",
        "A package is being built from source and the toolkit's include folder is not where it looks.",
        "Install wheels instead; to build that package, set CUDA_HOME (and CUDA_TOOLKIT_PATH) to the toolkit's folder: "
        "include/cuda.h must be below it.",
    ),
    Diagnosis(
        "unresolved-bindings",
        _BUILD,
        "error[E0432]: unresolved import cuda_core::sys",
        r"unresolved import [`'\"]?cuda_core|No module named 'cuda(?:\.\w+)*'|cannot import name 'driver' from 'cuda",
        "The installed CUDA bindings are missing, or older than the release that this package is written for.",
        "python -m pip install --upgrade 'tensor-wasm[cuda]' (cuda-bindings 12.9 up to 13), and uninstall an old "
        "package called 'cuda' or cuda-python 11.",
    ),
    Diagnosis(
        "no-bindings",
        _LOADER,
        "cuda-bindings is not installed",
        r"cuda-bindings (?:is not installed|does not load)",
        "The Python package that calls the driver is an optional extra, and it is not there.",
        "python -m pip install 'tensor-wasm[cuda]'",
    ),
    Diagnosis(
        "old-driver-for-toolkit",
        _VERSIONS,
        "CUDA driver version is insufficient for CUDA runtime version (error 35)",
        r"driver version is insufficient|\(error 35\b",
        "The toolkit, or a library built with it, is newer than the driver.",
        "Upgrade the driver to the toolkit's row of the driver matrix (12.0: 525.60.13, 12.4: 550.54.14, 12.6: "
        "560.28.03, 13.0: 580.65.06, 13.2: 590.42.01; on Windows 527.41, 551.61, 560.81, 580.88, 591.86), or use an "
        "older toolkit.",
    ),
    Diagnosis(
        "driver-mismatch",
        _VERSIONS,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (error 803)",
        r"SYSTEM_DRIVER_MISMATCH|\(error 803\b|Driver/library version mismatch",
        "The driver's library and its kernel module are of different versions: an upgrade without a reboot, a "
        "container's compatibility libcuda, or driver and toolkit from different major versions.",
        "Reboot, or reload the nvidia kernel modules. Take CUDA 'compat' folders off LD_LIBRARY_PATH. The driver's "
        "major version must be the toolkit's or a newer one.",
    ),
    Diagnosis(
        "no-ptxas",
        _VERSIONS,
        "nvcc fatal : Could not find ptxas",
        r"could not find ptxas|ptxas(?:: command)? not found",
        "The toolkit's bin folder is not on the PATH.",
        'Linux: export PATH="$CUDA_ROOT/bin:$PATH". Windows: setx PATH, then open a new shell. Without ptxas the '
        "driver compiles kernels itself, inside this process.",
    ),
    Diagnosis(
        "architecture-newer-than-toolkit",
        _VERSIONS,
        "nvcc fatal : Unsupported gpu architecture 'compute_90'",
        r"Unsupported gpu architecture '(?:compute|sm)_(?:89|9\d|1[0-9]{2})",
        "The toolkit is too old for that architecture.",
        "sm_89 and sm_90 came with CUDA 11.8 (12.0 is the oldest supported here), sm_100 and sm_120 with 12.8: upgrade "
        "the toolkit, or set CUDA_ARCH to an architecture it knows.",
    ),
    Diagnosis(
        "architecture-dropped",
        _VERSIONS,
        "nvcc fatal : Unsupported gpu architecture 'compute_70'",
        r"Unsupported gpu architecture '(?:compute|sm)_(?:[5-6]\d|7[02])",
        "The toolkit no longer compiles for that architecture: CUDA 13 begins with sm_75.",
        "Use a 12.x toolkit for Volta (sm_70, sm_72). Older GPUs are not supported.",
    ),
    Diagnosis(
        "architecture-not-the-gpus",
        _VERSIONS,
        "nvcc fatal : Unsupported gpu architecture 'compute_80'",
        r"Unsupported gpu architecture '(?:compute|sm)_\d+|CUDA_ARCH=sm_\d+\w? is newer than the GPU",
        "CUDA_ARCH asks for a newer architecture than this GPU has: sm_80 on a Turing card (sm_75), say.",
        "Set CUDA_ARCH to the GPU's own (sm_75 for RTX 20xx and T4, sm_80 A100, sm_86 RTX 30xx, sm_89 L4 and RTX 40xx, "
        "sm_90 H100), or unset it: then the kernel is chosen by the GPU.",
    ),
    Diagnosis(
        "no-device-headless",
        _DEVICE,
        "CUDA_ERROR_NO_DEVICE (error 100) on a headless server",
        r"CUDA_ERROR_NO_DEVICE|/dev/nvidia\S* (?:is|are) missing",
        "The device nodes /dev/nvidia* were not created at boot: no X session and no nvidia-modprobe.",
        "sudo apt-get install nvidia-modprobe && sudo nvidia-modprobe -u -c=0; make it a systemd unit in production.",
    ),
    Diagnosis(
        "no-device",
        _DEVICE,
        "no CUDA-capable device is detected (error 100)",
        r"no CUDA-capable device|\(error 100\b|No devices were found",
        "The driver is loaded but finds no usable GPU: no permission on the device, a container started without GPUs, "
        "an empty CUDA_VISIBLE_DEVICES, or another process that holds the GPU exclusively.",
        "Run nvidia-smi in the same shell. Docker: --gpus all and nvidia-container-toolkit. Kubernetes: the "
        "NVIDIA device plugin and nvidia.com/gpu: 1. 'nvidia-smi -q -d COMPUTE' should say Default.",
    ),
    Diagnosis(
        "out-of-memory",
        _DEVICE,
        "cuda runtime error: out of memory",
        r"cuda runtime error.{0,20}out of memory|CUDA_ERROR_OUT_OF_MEMORY|device has no such memory left|\(error 2\b",
        "The GPU's memory is full: this process, or another on the card, holds too much.",
        "nvidia-smi lists the processes that hold it. Lower --memory (256 MiB is enough for most guests) and what "
        "guests may allocate (512 MiB).",
    ),
    Diagnosis(
        "illegal-address",
        _DEVICE,
        "cudaErrorIllegalAddress during a kernel launch",
        r"cudaErrorIllegalAddress|ILLEGAL_ADDRESS|\(error 700\b|an access outside memory",
        "The kernel touched memory that is not its own: nearly always the kernel's fault, not the machine's. The GPU "
        "is lost for that process.",
        "Run it with --device emulator: that names thread, instruction and address. Then start a new process.",
    ),
    Diagnosis(
        "wrong-sums",
        _DEVICE,
        "vector_add: 3 of 1000 sums are wrong",
        r"sums are wrong",
        "The device runs the kernel and computes wrong results: a hardware fault, an overclocked card or a bug here.",
        "Look for 'Xid' in dmesg and at ECC errors in 'nvidia-smi -q'; run the same with --device emulator.",
    ),
    Diagnosis(
        "busy-device",
        _DEVICE,
        "all CUDA-capable devices are busy or unavailable (error 46)",
        r"devices are busy or unavailable|\(error 46\b|exclusive or prohibited compute mode|prohibited compute mode",
        "The GPU is in exclusive or prohibited compute mode, and not for this process.",
        "'nvidia-smi -q -d COMPUTE' shows the mode, and nvidia-smi the process; the mode should be 'Default'.",
    ),
    Diagnosis(
        "no-fabric-manager",
        _DEVICE,
        "system not yet initialized (error 802)",
        r"system (?:is )?not (?:yet initialized|ready)|\(error 802\b",
        "GPUs joined by NVSwitch need the fabric manager, and it does not run or is of another version.",
        "Install nvidia-fabricmanager of the driver's exact version, then systemctl start nvidia-fabricmanager.",
    ),
    Diagnosis(
        "compat-libcuda",
        _VERSIONS,
        "forward compatibility was attempted on non supported HW (error 804)",
        r"forward compatibility was attempted|CUDA 'compat' folder, whose|\(error 804\b",
        "A CUDA 'compat' libcuda is used on a card that does not support it; only data-centre cards do.",
        "Take the compat folder off LD_LIBRARY_PATH and upgrade the driver instead.",
    ),
    Diagnosis(
        "stub-libcuda",
        _LOADER,
        "CUDA driver is a stub library (error 34)",
        r"stub library|toolkit's stub|\(error 34\b",
        "The toolkit's stub was loaded instead of the driver's library: it is for linking only.",
        "Take .../lib64/stubs off LD_LIBRARY_PATH.",
    ),
    Diagnosis(
        "no-kernel-module",
        _LOADER,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        r"couldn't communicate with the NVIDIA driver",
        "The driver's kernel module is not loaded: not built for this kernel, rejected by Secure Boot, or nouveau has "
        "the card.",
        "sudo modprobe nvidia and see dmesg; install the kernel's headers and the driver again (DKMS).",
    ),
    Diagnosis(
        "old-driver",
        _VERSIONS,
        "driver 470.256.02 supports CUDA 11.4 and is older than 525",
        r"is older than 525",
        "The driver is older than the oldest that is supported.",
        "Install driver 525.60.13 (Windows: 527.41) or newer.",
    ),
    Diagnosis(
        "old-gpu",
        _DEVICE,
        "compute capability 6.1, below 7.0",
        r"compute capability \d\.\d(?: is|,) below 7\.0",
        "The GPU is older than Volta: no independent thread scheduling, and no managed memory that migrates as needed.",
        "Use a GPU with compute capability 7.0 or higher, or --device emulator.",
    ),
    Diagnosis(
        "mps-unreachable",
        _MPS,
        "the MPS server cannot be reached (error 805)",
        r"MPS (?:server|client) (?:cannot be reached|failed to connect|is not ready)|\(error 80[57]\b",
        "CUDA_MPS_PIPE_DIRECTORY names an MPS daemon that does not answer.",
        "Start it (nvidia-cuda-mps-control -d) or unset CUDA_MPS_PIPE_DIRECTORY.",
    ),
    Diagnosis(
        "mps-full",
        _MPS,
        "the MPS server has no room for another client (error 808)",
        r"MPS server has no (?:room|free)|\(error 80[89]\b",
        "The MPS server serves as many clients as it can: 16 before Volta, 48 or more since.",
        "Use fewer worker processes, or run some without MPS.",
    ),
)


def diagnose(text: str) -> Diagnosis | None:
    """Return the first row whose pattern is found in a text, None if there is none."""
    return next((row for row in DIAGNOSES if re.search(row.pattern, text, re.IGNORECASE)), None)
