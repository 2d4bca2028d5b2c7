// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How a program of hip-tests is compiled: its own file, what its category shares, and what it
//! wants beside it when it runs.
//!
//! Mechanism: a file with test cases is a program. Code objects and helper programs are made for
//! those files that name them, because each program has a directory of its own. gfx900 and gfx1030
//! are in one program: most of the time goes into the host's half.
//!
//! Limits: hip-tests' CMake files are not read. What they say of single files stands here again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// What all programs share.
const MAIN: &[&str] = &["hipTestMain/main", "hipTestMain/hip_test_context", "hipTestMain/hip_test_features"];
/// What the programs of a category share.
const SHARED: &[(&str, &[&str])] = &[
    ("errorHandling/", &["unit/errorHandling/error_handling_common"]),
    ("executionControl/", &["unit/executionControl/execution_control_common"]),
    ("memory/", &["unit/memory/DriverContext", "unit/memory/memoryCommon"]),
    ("module/", &["unit/module/hip_module_common"]),
    ("stream/", &["unit/stream/streamCommon"]),
];
/// HIP 5.2.3 has this clock for the GPU alone, and the host's half of a kernel names it as well.
const CLOCK: &str = "-Xarch_host -Dwall_clock64=__clock64";
/// Options of single files.
const OPTIONS: &[(&str, &str)] = &[
    ("cooperativeGrps/binary_partition", "-DHIP_ENABLE_WARP_SYNC_BUILTINS"),
    ("cooperativeGrps/cg_", "-DHIP_ENABLE_WARP_SYNC_BUILTINS"),
    ("cooperativeGrps/coalesced_group", CLOCK),
    ("cooperativeGrps/multi_grid_group", CLOCK),
    ("cooperativeGrps/thread_block", CLOCK),
    ("deviceLib/AtomicAdd_Coherent_withnoUnsafeflag", "-mno-unsafe-fp-atomics"),
    ("deviceLib/AtomicAdd_Coherent_withunsafeflag", "-munsafe-fp-atomics"),
    ("deviceLib/AtomicAdd_NonCoherent_withnoUnsafeflag", "-mno-unsafe-fp-atomics"),
    ("deviceLib/AtomicAdd_NonCoherent_withunsafeflag", "-munsafe-fp-atomics"),
    ("deviceLib/bfloat16", "-DHIP_ENABLE_WARP_SYNC_BUILTINS"),
    ("deviceLib/unsafeAtomicAdd_Coherent_withnounsafeflag", "-mno-unsafe-fp-atomics"),
    ("deviceLib/unsafeAtomicAdd_Coherent_withunsafeflag", "-munsafe-fp-atomics"),
    ("deviceLib/unsafeAtomicAdd_NonCoherent_withnounsafeflag", "-mno-unsafe-fp-atomics"),
    ("deviceLib/unsafeAtomicAdd_NonCoherent_withunsafeflag", "-munsafe-fp-atomics"),
    ("module/hipExtLaunchKernelGGL", CLOCK),
    ("module/hipModuleLaunchCooperativeKernel", CLOCK),
    ("printf/printfFlagsNonHost", "-mprintf-kind=buffered"),
    ("printf/printfNonHost", "-mprintf-kind=buffered"),
    ("printf/printfSpecifiersNonHost", "-mprintf-kind=buffered"),
    ("streamperthread/hipStreamPerThrdCompilerOptn", "-fgpu-default-stream=per-thread"),
];
/// C and C++ that a program is linked with, each compiled by that compiler.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("c_compilation/hipGetDeviceProp", "hipcc", "c_compilation/hipGetDeviceProp.c"),
    ("g++/hipMalloc", "g++", "g++/hipMalloc.cpp"),
    ("gcc/gccTest", "gcc", "gcc/LaunchKernel.c"),
    ("gcc/gccTest", "gcc", "gcc/hipMalloc.c"),
    ("gcc/gccTest", "hipcc", "gcc/gpu.cpp"),
    ("rtc/hiprtcComplrOptnTesting", "hipcc", "rtc/RtcFunctions.cpp"),
    ("rtc/hiprtcComplrOptnTesting", "hipcc", "rtc/RtcUtility.cpp"),
];

/// What a program finds beside it.
#[derive(Clone, Copy)]
enum Beside {
    /// A code object of a file.
    Code(&'static str),
    /// A program of a file.
    Program(&'static str),
    /// A library of a file.
    Library(&'static str),
    /// A file or directory as it is.
    Copy(&'static str),
}

/// By its name. A program whose source names it in quotes gets it.
const BESIDE: &[(&str, Beside)] = &[
    ("ChkPtrdiff_t_Exe", Beside::Program("rtc/ChkPtrdiff_t_Exe.cc")),
    ("SimpleKernel.code", Beside::Code("callback/SimpleKernel.cc")),
    ("addKernel.code", Beside::Code("module/addKernel.cc")),
    ("add_Kernel.code", Beside::Code("graph/add_Kernel.cpp")),
    ("bit_extract_kernel.code", Beside::Code("dynamicLoading/bit_extract_kernel.cpp")),
    ("copiousArgKernel.code", Beside::Code("module/copiousArgKernel.cc")),
    ("copyKernel.code", Beside::Code("module/copyKernel.cc")),
    ("empty_module.code", Beside::Code("module/empty_module.cc")),
    ("getDeviceCount", Beside::Program("device/getDeviceCount_exe.cc")),
    ("get_function_module.code", Beside::Code("module/get_function_module.cc")),
    ("get_global_test_module.code", Beside::Code("module/get_global_test_module.cc")),
    ("get_tex_ref_module.code", Beside::Code("module/get_tex_ref_module.cc")),
    ("hipDeviceGetP2PAttribute_exe", Beside::Program("p2p/hipDeviceGetP2PAttribute_exe.cc")),
    ("hipGetFuncBySymbol_exe", Beside::Program("module/hipGetFuncBySymbol_exe.cc")),
    ("hipHostRegisterPerf", Beside::Program("memory/hipHostRegister_exe.cc")),
    ("hipMatMul.code", Beside::Code("graph/hipMatMul.cc")),
    ("hipMemAdviseTstAlignedAllocMem", Beside::Program("memory/hipMemAdvise_AlignedAllocMem_Exe.cc")),
    ("kerDevAllocMultCO.code", Beside::Code("deviceLib/kerDevAllocMultCO.cc")),
    ("kerDevAllocSingleKer.code", Beside::Code("deviceLib/kerDevAllocSingleKer.cc")),
    ("kerDevFreeMultCO.code", Beside::Code("deviceLib/kerDevFreeMultCO.cc")),
    ("kerDevWriteMultCO.code", Beside::Code("deviceLib/kerDevWriteMultCO.cc")),
    ("kernel_composite_test.code", Beside::Code("module/kernel_composite_test.cpp")),
    ("launch_kernel_module.code", Beside::Code("module/launch_kernel_module.cc")),
    ("./libLazyLoad.so", Beside::Library("dynamicLoading/liblazyLoad.cc")),
    ("managed_kernel.code", Beside::Code("module/managed_kernel.cpp")),
    ("-I./headers", Beside::Copy("rtc/headers")),
    ("matmul.code", Beside::Code("module/matmul.cpp")),
    ("memcpyInt.hsaco", Beside::Code("synchronization/memcpyIntDevice.cpp")),
    ("printfFlagsNonHost_exe", Beside::Program("printf/printfFlagsNonHost_exe.cc")),
    ("printfFlags_exe", Beside::Program("printf/printfFlags_exe.cc")),
    ("printfLength_exe", Beside::Program("printf/printfLength_exe.cc")),
    ("printfSpecifiersNonHost_exe", Beside::Program("printf/printfSpecifiersNonHost_exe.cc")),
    ("printfSpecifiers_exe", Beside::Program("printf/printfSpecifiers_exe.cc")),
    ("saxpy.h", Beside::Copy("rtc/saxpy.h")),
    ("simple_kernel.code", Beside::Code("occupancy/simple_kernel.cc")),
    ("testhipModuleLoadUnloadFunc_exe", Beside::Program("module/testhipModuleLoadUnloadFunc_exe.cc")),
    ("vcpy_kernel.code", Beside::Code("module/vcpy_kernel.cpp")),
];

/// Under which name programs for a target are kept.
pub(crate) fn kept_for(target: &str) -> &str {
    match target {
        "gfx900" | "gfx1030" => "gfx900,gfx1030",
        other => other,
    }
}

/// A source file's text. Some are not in UTF-8.
pub(crate) fn read(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a file has test cases, and not only helpers of other files. Some have them by a macro.
pub(crate) fn has_cases(text: &str) -> bool {
    ["TEST_CASE", "_TEST_DEF(", "_TEST_DEF_IMPL("].iter().any(|macro_| text.contains(macro_))
}

/// What the programs share, compiled into `at`.
pub(crate) fn shared(source: &Path, target: &str, at: &Path) -> Vec<Command> {
    let files = MAIN.iter().chain(SHARED.iter().flat_map(|(_, files)| *files));
    let object = |file: &&str| {
        let mut command = compiler(source, target);
        command.arg("-c").arg(source.join("catch").join(file).with_extension("cc"));
        command.arg("-o").arg(object(at, file));
        command
    };
    files.map(object).collect()
}

/// Compiles the program `name` into `at`.
pub(crate) fn program(source: &Path, target: &str, name: &str, shared: &Path, at: &Path) -> Result<Vec<Command>> {
    let units = source.join("catch/unit");
    let file = units.join(name).with_extension("cc");
    let mut commands = beside(source, target, &file, at)?;
    let program = at.join("program.o");
    let mut compile = compiler(source, target);
    let options = OPTIONS.iter().filter(|(of, _)| name.starts_with(of));
    compile.args(options.flat_map(|(_, options)| options.split(' ')));
    compile.arg("-c").arg(&file).arg("-o").arg(&program);
    commands.push(compile);
    let mut link = Command::new("hipcc");
    link.arg(&program).args(MAIN.iter().map(|file| object(shared, file)));
    let of_category = SHARED.iter().filter(|(category, _)| name.starts_with(category));
    link.args(of_category.flat_map(|(_, files)| *files).map(|file| object(shared, file)));
    for (_, with, file) in FOREIGN.iter().filter(|(of, ..)| *of == name) {
        let made = object(at, file);
        let mut command = if *with == "hipcc" { compiler(source, target) } else { Command::new(with) };
        command.args(["-D__HIP_PLATFORM_AMD__", "-fPIC", "-c"]).arg(units.join(file)).arg("-o").arg(&made);
        commands.push(command);
        link.arg(made);
    }
    link.args(["-ldl", "-lpthread", "-o"]).arg(at.join("program"));
    commands.push(link);
    Ok(commands)
}

/// Where a file's object is.
fn object(at: &Path, file: &str) -> PathBuf {
    at.join(file.replace('/', "-") + ".o")
}

/// What a file wants beside it.
fn beside(source: &Path, target: &str, file: &Path, at: &Path) -> Result<Vec<Command>> {
    let text = with_headers(file)?;
    let mut commands = Vec::new();
    let named = |name: &str| text.contains(&format!("\"{name}\""));
    for (name, what) in BESIDE.iter().filter(|(name, _)| named(name)) {
        let mut command = compiler(source, target);
        let file = match what {
            Beside::Code(file) => {
                command.arg("--genco");
                file
            }
            Beside::Program(file) => {
                commands.extend(beside(source, target, &source.join("catch/unit").join(file), at)?);
                command.args(["-ldl", "-lpthread"]);
                file
            }
            Beside::Library(file) => {
                command.args(["-fPIC", "-shared", "-lpthread"]);
                file
            }
            Beside::Copy(file) => {
                let mut copy = Command::new("cp");
                copy.arg("-r").arg(source.join("catch/unit").join(file)).arg(at);
                commands.push(copy);
                continue;
            }
        };
        command.arg(source.join("catch/unit").join(file)).arg("-o").arg(at.join(name.trim_start_matches("./")));
        commands.push(command);
    }
    Ok(commands)
}

/// A file, and those of its directory that it includes.
fn with_headers(file: &Path) -> Result<String> {
    let mut text = read(file)?;
    let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.split_once('"'));
    let headers: Vec<_> = included.map(|(name, _)| file.with_file_name(name)).filter(|path| path.is_file()).collect();
    for header in headers {
        text.push_str(&read(&header)?);
    }
    Ok(text)
}

/// The compiler with the options of all files.
fn compiler(source: &Path, target: &str) -> Command {
    let mut command = Command::new("hipcc");
    let catch = source.join("catch");
    command.args(kept_for(target).split(',').map(|target| format!("--offload-arch={target}")));
    command.args(["-O1", "-std=c++17", "-w"]);
    command.args([
        "-DCATCH_CONFIG_NO_POSIX_SIGNALS",
        "-D__HIP_PLATFORM_AMD__",
        "-DHT_LINUX=1",
        "-DHT_AMD=1",
        // What HIP 5.2.3 has no wall clock for is measured by the other one.
        "-DTEST_CLOCK_CYCLE",
        "-DhipDeviceAttributeWallClockRate=hipDeviceAttributeClockRate",
    ]);
    command.arg(format!("-DKERNELS_PATH=\"{}/\"", catch.join("kernels").display()));
    for directory in ["include", "kernels", "external/Catch2", "external/picojson", "unit/memory"] {
        command.arg("-I").arg(catch.join(directory));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_cases_is_no_program() {
        for (text, is_program) in [
            ("TEST_CASE(\"Unit_x\") {", true),
            ("TEMPLATE_TEST_CASE(\"Unit_x\", \"\", int) {", true),
            ("MATH_UNARY_HP_TEST_DEF_IMPL(hcos, f)", true),
            ("HIP_MODULE_GET_GLOBAL_TEST_DEFINE_DEVICE_GLOBALS(int)", false),
            ("__global__ void kernel() {}", false),
        ] {
            assert_eq!(has_cases(text), is_program, "{text}");
        }
    }

    #[test]
    fn what_a_file_names_is_made_beside_it() {
        let source = std::env::temp_dir().join(format!("vkfd-xtask-hip-catch-{}", std::process::id()));
        let units = source.join("catch/unit/p2p");
        fs::create_dir_all(&units).expect("a directory");
        fs::write(units.join("x.hh"), b"load(\"hipDeviceGetP2PAttribute_exe\"); // \xff").expect("a header");
        fs::write(units.join("hipDeviceGetP2PAttribute_exe.cc"), "int main() {}").expect("a file");
        fs::write(units.join("x.cc"), "#include \"x.hh\"\n#include \"absent.hh\"\n").expect("a file");
        let words = |name: &str| {
            let commands = program(&source, "gfx900", name, Path::new("shared"), Path::new("at"));
            super::super::cache::words(&commands.expect("commands"))
        };
        let made = words("p2p/x");
        assert!(made.contains("-o at/hipDeviceGetP2PAttribute_exe") && made.contains("-o at/program"), "{made}");
        assert!(made.contains("--offload-arch=gfx900 --offload-arch=gfx1030"), "{made}");
        fs::remove_dir_all(&source).expect("removed");
    }
}
