# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Builds PyTorch for ROCm from Debian's source package, or goes on with it.

Usage: build.py JOBS, in a root with the packages of the recipe. `/work` is the state, which stays:

    source     the unpacked package, with the fixes of fixes.py
    tree       ninja's
    ccache     objects by their sources, for when a header or an option changes
    library    a directory for PYTHONPATH with PyTorch in it, once all is built

A step is done when its stamp says what it was done with. Objects are in ninja's log. An end at any
time loses the files that are being compiled and nothing else.

The order is of risk: first what showed trouble, then the GPU's side, then the rest. A file that
does not compile keeps none of the others back, and is named at the end.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import fixes

WORK = pathlib.Path("/work")
SOURCE, TREE, LIBRARY = WORK / "source", WORK / "tree", WORK / "library"
PYTHON = sys.executable
VERSION = "2.6.0"
# Of the kernels' code. Each more is as many minutes again.
TARGET = "gfx90a"
LLVM = "/usr/lib/llvm-21/bin"
BLAS = "openblas-pthread"
MULTIARCH = "x86_64-linux-gnu"
# Debug information and the copies of kernels for wider vectors would take most of the time and the
# disk. What a checker of a GPU compares is the GPU's side.
LEVEL = "-O1"
SWITCHED_OFF = """
    ATEN_NO_TEST=ON BUILD_FUNCTORCH=OFF BUILD_TEST=OFF USE_CUDA=OFF USE_DISTRIBUTED=OFF USE_FBGEMM=OFF
    USE_FLASH_ATTENTION=OFF USE_GLOO=OFF USE_ITT=OFF USE_KINETO=OFF USE_LLVM=OFF USE_MAGMA=OFF
    USE_MEM_EFF_ATTENTION=OFF USE_MKLDNN=OFF USE_MPI=OFF USE_NCCL=OFF USE_NNPACK=OFF USE_NUMA=OFF
    USE_PYTORCH_QNNPACK=OFF USE_RCCL=OFF USE_TENSORPIPE=OFF USE_VALGRIND=OFF USE_VULKAN=OFF USE_XNNPACK=OFF
    C_AVX2_FOUND=OFF C_AVX512_FOUND=OFF CXX_AVX2_FOUND=OFF CXX_AVX512_FOUND=OFF
    C_HAS_AVX2_1=OFF C_HAS_AVX2_2=OFF C_HAS_AVX2_3=OFF C_HAS_AVX512_1=OFF C_HAS_AVX512_2=OFF C_HAS_AVX512_3=OFF
    CXX_HAS_AVX2_1=OFF CXX_HAS_AVX2_2=OFF CXX_HAS_AVX2_3=OFF
    CXX_HAS_AVX512_1=OFF CXX_HAS_AVX512_2=OFF CXX_HAS_AVX512_3=OFF
""".split()
OPTIONS = [
    *SWITCHED_OFF,
    "BLAS=OpenBLAS",
    "BUILD_PYTHON=ON",
    "CMAKE_BUILD_TYPE=Release",
    "CMAKE_C_COMPILER=/usr/bin/gcc",
    "CMAKE_CXX_COMPILER=/usr/bin/g++",
    f"CMAKE_CXX_FLAGS_RELEASE={LEVEL} -DNDEBUG",
    f"CMAKE_C_FLAGS_RELEASE={LEVEL} -DNDEBUG",
    f"CMAKE_INSTALL_PREFIX={LIBRARY}/torch",
    f"CMAKE_MODULE_PATH=/usr/lib/{MULTIARCH}/cmake/hip",
    "CMAKE_POLICY_VERSION_MINIMUM=3.5",
    "ONNX_NAMESPACE=onnx",
    f"OpenBLAS_INCLUDE_DIR=/usr/include/{MULTIARCH}/{BLAS}",
    f"OpenBLAS_LIB=/usr/lib/{MULTIARCH}/{BLAS}/libopenblas.so",
    f"Python_EXECUTABLE={PYTHON}",
    "USE_CCACHE=ON",
    "USE_NUMPY=ON",
    "USE_OPENMP=ON",
    "USE_ROCM=ON",
    "USE_SYSTEM_LIBS=ON",
    "USE_SYSTEM_NCCL=ON",
]
# Files that say early what does not fit: the runtime's versions, each library's interface, CUB,
# what was taken out, and the largest files.
RISKY = [
    "Tunable.cpp.o", "HIPBlas.cpp.o", "ck_absent.cpp.o", "HIPHooks.cpp.o", "HIPContext.cpp.o", "Conv_miopen.cpp.o",
    "RNN_miopen.cpp.o", "BatchNorm_miopen.cpp.o", "SpectralOps.cpp.o", "HIPSolver.cpp.o", "BatchLinearAlgebra.cpp.o",
    "SparseHIPBlas.cpp.o", "SparseBlasImpl.cpp.o", "HIPCachingAllocator.cpp.o", "stub_with_flatbuffer.c.o",
    "Sort.hip.o", "SortStable.hip.o", "cub-RadixSortPairs.hip.o", "cub.hip.o", "UniqueCub.hip.o", "Nonzero.hip.o",
    "SparseHIPTensorMath.hip.o", "ReduceMomentKernel.hip.o", "attention.hip.o", "RNN.hip.o", "Indexing.hip.o",
    "ForeachReduceOp.hip.o", "MultinomialKernel.hip.o", "layer_norm_kernel.hip.o", "SoftMax.hip.o",
    "python_torch_functions_0.cpp.o", "Module.cpp.o", "init.cpp.o", "NvFuserInterface.cpp.o", "VariableType_1.cpp.o",
    "RegisterCPU.cpp.o", "serialization.cpp.o", "flatbuffer_loader.cpp.o",
]  # fmt: skip
GENERATED = ["ATEN_CPU_FILES_GEN_TARGET", "ATEN_CUDA_FILES_GEN_TARGET", "generate-torch-sources"]
# A line of build.ninja that says that the order was loosened.
LOOSENED = "# The order of vkfd's recipe, 4\n"
# How an object of the GPU's side ends.
KERNEL = r"_generated_\w+([-.]\w+)*\.(hip|cu)\.o"


def digest(*parts) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def is_done(step: str, how: str) -> bool:
    stamp = WORK / "stamps" / step
    return stamp.exists() and stamp.read_text() == how


def done(step: str, how: str) -> None:
    stamp = WORK / "stamps" / step
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(how)


def environment(**more) -> dict:
    """Of all that is started. ROCM_PATH and HIP_PATH would lead the compiler away from its device
    libraries; only the configuration wants them."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LC_ALL") if name in os.environ}
    return {
        "PATH": "/usr/bin:/usr/sbin",
        "HOME": str(WORK / "home"),
        "CCACHE_DIR": str(WORK / "ccache"),
        "CCACHE_MAXSIZE": "3G",
        "CCACHE_COMPILERCHECK": "%compiler% -v",
        # With another one hipconfig complains, CMake takes HIP for version 0, and leaves it out.
        "HIP_CLANG_PATH": LLVM,
        # Comes last, after hipcc's own -O3.
        "HIPCC_COMPILE_FLAGS_APPEND": LEVEL,
        "PYTORCH_ROCM_ARCH": TARGET,
        **kept,
        **more,
    }


def run(*words, at=SOURCE, **more) -> None:
    print("+", *map(str, words), flush=True)
    subprocess.run([str(word) for word in words], cwd=at, env=environment(**more), check=True)


def prepare() -> None:
    """The source as it is compiled: flatbuffers' header, CUDA's files as HIP's, and the fixes."""
    for directory in ("home", "ccache"):
        (WORK / directory).mkdir(exist_ok=True)
    if not is_done("hipified", "1"):
        schema = SOURCE / "torch/csrc/jit/serialization"
        run("flatc", "--cpp", "--gen-mutable", "--scoped-enums", "mobile_bytecode.fbs", at=schema)
        run(PYTHON, "tools/amd_build/build_amd.py")
        done("hipified", "1")
    fixes.apply(SOURCE, WORK / "originals", pathlib.Path(__file__).parent)
    # PyTorch asks for ROCm's version in a header that Debian does not have.
    header = pathlib.Path("/usr/include/rocm-core/rocm_version.h")
    header.parent.mkdir(exist_ok=True)
    version = fixes.rocm_version()
    if not header.exists() or header.read_text() != version:
        header.write_text(version)


def configure() -> None:
    how = digest(*OPTIONS, TARGET, LOOSENED)
    if is_done("configured", how) and (TREE / "build.ninja").exists():
        return
    log = TREE / "configure.log"
    TREE.mkdir(exist_ok=True)
    options = [f"-D{option}" for option in OPTIONS]
    try:
        run("cmake", "-S", SOURCE, "-B", TREE, "-G", "Ninja", *options, ROCM_PATH="/usr", HIP_PATH="/usr")
    finally:
        print(f"what CMake found is in {log.name}'s place, CMakeCache.txt", flush=True)
    cache = (TREE / "CMakeCache.txt").read_text()
    # Where HIP is not found, CMake goes on without it and succeeds.
    if not re.search(r"^USE_ROCM:BOOL=ON$", cache, re.M) or "torch_hip.dir" not in (TREE / "build.ninja").read_text():
        sys.exit("CMake has left ROCm out")
    done("configured", how)


def loosen() -> list:
    """All objects. CMake lets an object wait for the libraries that its library is linked with, and
    one of the host for all of the GPU's: what is risky would come last. And each object of the GPU's
    side would have CMake configure again."""
    file = TREE / "build.ninja"
    text = file.read_text()
    if not text.startswith(LOOSENED):

        def without(match):
            """A statement without what it only waits for, as far as a compiler makes that."""
            outputs, rest = match.groups()
            before, waits, after = rest.partition(" || ")
            is_object = re.search(rf"{KERNEL}( |$)", outputs)
            if not waits or not (is_object or outputs.startswith("cmake_object_order_depends_target_")):
                return match.group()
            made = re.compile(rf"({KERNEL}|\.so(\.[0-9.]+)?|\.a)$")
            kept = [word for word in after.split(" ") if not made.search(word)]
            if is_object:
                kept = GENERATED
            return f"build {outputs}: {before} || {' '.join(kept)}"

        text = re.sub(r"^build build\.ninja .*\n(?:  .*\n)*", "", text, flags=re.M)
        text = LOOSENED + re.sub(r"^build ([^:\n]+(?:\$:[^:\n]+)*): (.*)$", without, text, flags=re.M)
        file.write_text(text)
    return re.findall(r"^build (\S+\.o)(?: \||:)", text, re.M)


def ninja(jobs: str, what: str, targets: list) -> list:
    """Builds as much of it as can be built. What failed."""
    print(f"== {what}: {len(targets)} targets", flush=True)
    words = ["ninja", "-C", TREE, "-j", jobs, "-k", "0", *targets]
    failed = []
    process = subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, text=True, errors="replace",
        env=environment(NINJA_STATUS="[%f/%t, %o/s] "),
    )  # fmt: skip
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("FAILED: "):
            failed.append(line.split()[-1])
    if process.wait() and not failed:
        failed.append(f"{what}: ninja ended with {process.returncode}")
    return failed


def install() -> None:
    """PyTorch as a package: ninja's libraries, the Python files, and the module around them. Its own
    tests are beside it."""
    run("cmake", "--install", TREE, "--strip")
    package = LIBRARY / "torch"
    for name in ("torch", "torchgen", "functorch"):
        for file in (SOURCE / name).rglob("*"):
            if file.suffix in (".py", ".pyi", ".yaml", ".json", ".jinja", ".typed"):
                to = LIBRARY / file.relative_to(SOURCE)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, to)
    module = package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    run(
        "gcc", "-O1", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", SOURCE / "torch/csrc/stub.c",
        "-o", module, f"-L{package}/lib", "-ltorch_python", "-Wl,-rpath,$ORIGIN/lib",
    )  # fmt: skip
    # Other packages ask pip's records for its version.
    record = LIBRARY / f"torch-{VERSION}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
    tests = LIBRARY / "own_tests"
    for file in (SOURCE / "test").rglob("*.py"):
        to = tests / file.relative_to(SOURCE / "test")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to)
    # The headers are for extensions in C++.
    shutil.rmtree(package / "include", ignore_errors=True)
    (package / ".whole").write_text(TARGET)


def main() -> int:
    jobs = sys.argv[1]
    prepare()
    configure()
    objects = loosen()
    kernels = [name for name in objects if re.search(f"{KERNEL}$", name)]
    host = [name for name in objects if name not in set(kernels)]

    def of(*targets):
        return [name for name in host if any(f"/{target}.dir/" in name for target in targets)]

    risky = [name for name in objects if any(name.endswith(("/" + end, "_" + end)) for end in RISKY)]
    failed = ninja(jobs, "generated sources", GENERATED)
    steps = [
        ("what showed trouble", risky),
        ("the host's side of the GPU", of("c10", "c10_hip", "torch_hip")),
        ("kernels", kernels),
        ("Python", of("torch_python", "shm", "torch_shm_manager")),
        ("the CPU's side", of("torch_cpu")),
        ("all", ["all"]),
    ]
    for what, targets in steps:
        failed += ninja(jobs, what, targets)
    if failed:
        print("\n".join(["not built:", *sorted(set(failed))]), flush=True)
        return 1
    install()
    return 0


if __name__ == "__main__":
    sys.exit(main())
