// SPDX-License-Identifier: GPL-2.0 OR MIT
//! llama.cpp on its HIP backend, as Debian sid packages both: llama.cpp's own comparisons of the
//! backend with the CPU's, and text of models that are made on the spot.
//!
//! Mechanism: `ops/NAME` is one of ggml's operations in test-backend-ops, a case is one of its
//! calls. `archs` is test-llama-archs: a small model with random weights for each of some
//! architectures, whose logits are compared. `text` has such models write 64 tokens on the CPU and
//! on the GPU, drawn with the same seed. Both must be the same. In `text-greedy` the likeliest
//! token is taken. `text-oversubscribed` is that with a model larger than the GPU's memory: it is
//! managed memory, and XNACK is on. `text-batch` is that with all of a program's device memory in
//! scattered pieces of host memory, registered by the batch ([`Memory::Batch`]).
//!
//! Limits: in a guest some operations run, and `text-batch`. Nobody's weights are used: the text
//! means nothing. CPU and GPU first differ in a sampled token. Attention and cache are f32, because
//! the CPU itself writes other text with f16.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::ggml_output::{architectures, operations, tokens};
use super::machine::Machine;
use super::memory::Memory;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;

pub struct Ggml;

const TESTS: &str = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests";
const COMPLETION: &str = "/usr/bin/llama-completion";

/// Operations, with a pattern of the parameters where all of them take too long.
const OPERATIONS: &[(&str, &str)] = &[
    ("ABS", ""),
    ("ACC", ""),
    ("ADD", ""),
    ("ADD_ID", ""),
    ("ARANGE", ""),
    ("ARGMAX", ""),
    ("ARGSORT", ""),
    ("CLAMP", ""),
    ("CONCAT", ""),
    ("CONT", ""),
    ("CONV_2D", "type_kernel=f16,stride0=1,"),
    ("CONV_2D_DW", ""),
    ("CONV_3D", ""),
    ("CONV_TRANSPOSE_1D", ""),
    ("CONV_TRANSPOSE_2D", ""),
    ("COS", ""),
    ("CPY", ""),
    ("CROSS_ENTROPY_LOSS", ""),
    ("CUMSUM", ""),
    ("DIAG_MASK_INF", ""),
    ("DIV", ""),
    ("EXP", ""),
    ("FLASH_ATTN_EXT", r"hsk=64,hsv=64,nh=4,nr23=\[1,1\],kv=113,nb=[13],"),
    ("GATED_DELTA_NET", "n_seq_tokens=[0-9]{1,2},"),
    ("GATED_LINEAR_ATTN", ""),
    ("GEGLU", ""),
    ("GELU", ""),
    ("GET_ROWS", "n=256"),
    ("GROUP_NORM", ""),
    ("IM2COL", ""),
    ("IM2COL_3D", ""),
    ("L2_NORM", ""),
    ("LIGHTNING_INDEXER", "nb=[0-9]{1,2},"),
    ("LOG", ""),
    ("MEAN", ""),
    ("MUL", ""),
    ("MUL_MAT", r"m=16,n=[0-9]+,k=256,bs=\[1,1\],nr=\[1,1\]"),
    ("MUL_MAT_ID", "n_mats=4,n_used=2,b=0,m=512,n=[0-9]+,k=256"),
    ("NORM", ""),
    ("OPT_STEP_ADAMW", ""),
    ("OUT_PROD", ""),
    ("PAD", ""),
    ("POOL_1D", ""),
    ("POOL_2D", ""),
    ("REPEAT", ""),
    ("RMS_NORM", ""),
    ("ROLL", ""),
    ("ROPE", r"type=f32,ne_a=\[128,32,2,1\]"),
    ("ROPE_BACK", r"ne_a=\[128,32,2,1\]"),
    ("RWKV_WKV6", ""),
    ("RWKV_WKV7", ""),
    ("SCALE", ""),
    ("SET", ""),
    ("SET_ROWS", ""),
    ("SIGMOID", ""),
    ("SILU", ""),
    ("SIN", ""),
    ("SOFT_MAX", ""),
    ("SQRT", ""),
    ("SSM_CONV", ""),
    ("SSM_SCAN", ""),
    ("SUB", ""),
    ("SUM", ""),
    ("SUM_ROWS", ""),
    ("SWIGLU", ""),
    ("TANH", ""),
    ("TIMESTEP_EMBEDDING", ""),
    ("TOP_K", r"ne=\[[0-9]{1,3},"),
    ("TRI", ""),
    ("UPSCALE", r"ne=\[2,5,7,11\]|ne=\[5,7,11,13\]"),
];

/// Architectures of which a model is made and compared.
const ARCHITECTURES: &str = "^(llama|gpt2|qwen2|qwen3moe|gemma3|phi3|falcon|starcoder2|olmo2|deepseek2|bloom)$";
/// Models that write, as llama.cpp names their files.
const WRITERS: &[&str] = &[
    "llama-dense",
    "llama-moe",
    "gpt2-dense",
    "qwen3moe-moe",
    "gemma3-dense",
    "phi3-dense",
    "falcon-dense",
    "starcoder2-dense",
    "olmo2-dense",
    "deepseek2-moe",
];
/// The one of these that has 22 MB.
const LARGE: &[&str] = &["deepseek2-moe"];
const OVERSUBSCRIBED: &[(&str, &str)] = &[("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "1"), ("HSA_XNACK", "1")];
/// It copies by the CPU, and a HIP graph cannot contain that.
const IN_BATCHES: &[(&str, &str)] = &[("LD_PRELOAD", "/work/libbatched.so"), ("GGML_CUDA_DISABLE_GRAPHS", "1")];
/// What it says in the end.
const WAS_BATCHED: &str = "batched: ";

const ARCHS: &str = "archs";
const TEXT_OVERSUBSCRIBED: &str = "text-oversubscribed";
const TEXT_BATCH: &str = "text-batch";

/// What [`Unit::environment`] is.
type Environment = &'static [(&'static str, &'static str)];

/// A program in which models write.
struct Writing {
    name: &'static str,
    models: &'static [&'static str],
    /// On the GPU.
    environment: Environment,
    /// Of the sampling: at 0 the likeliest token is always taken.
    temperature: &'static str,
}

const WRITINGS: &[Writing] = &[
    Writing { name: "text", models: WRITERS, environment: &[], temperature: "1" },
    Writing { name: "text-greedy", models: WRITERS, environment: &[], temperature: "0" },
    Writing { name: TEXT_OVERSUBSCRIBED, models: LARGE, environment: OVERSUBSCRIBED, temperature: "1" },
    Writing { name: TEXT_BATCH, models: WRITERS, environment: IN_BATCHES, temperature: "1" },
];

impl Ggml {
    /// Compares calls of an operation.
    fn operation(&self, machine: &Machine, unit: &Unit<'_>, name: &str) -> Result<Vec<Case>> {
        let mut arguments = vec!["test", "-b", "ROCm0", "-o", name];
        let pattern = OPERATIONS.iter().find(|(operation, _)| *operation == name).map_or("", |(_, pattern)| *pattern);
        if !pattern.is_empty() {
            arguments.extend(["-p", pattern]);
        }
        let program = format!("{TESTS}/test-backend-ops");
        let ran = machine.run_in_root(unit, &program, self.options(unit.name), &arguments, self.patience())?;
        Ok(self.with_end(unit, &ran, operations(&ran.stdout)))
    }

    fn architectures(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let program = format!("{TESTS}/test-llama-archs");
        let arguments = ["-b", "ROCm0", "-s", "7", "-a", ARCHITECTURES];
        let ran = machine.run_in_root(unit, &program, self.options(unit.name), &arguments, self.patience())?;
        Ok(self.with_end(unit, &ran, architectures(&ran.stdout)))
    }

    /// Has models write on the CPU and on the GPU.
    fn text(&self, machine: &Machine, unit: &Unit<'_>, writing: &Writing) -> Result<Vec<Case>> {
        let Writing { models, environment, temperature, .. } = *writing;
        let names: Vec<_> =
            models.iter().map(|model| model.rsplit_once('-').map_or(*model, |(name, _)| name)).collect();
        let pattern = format!("^({})$", names.join("|"));
        let save = ["-s", "7", "-o", WORK, "-a", &pattern];
        let options = self.options(unit.name);
        machine.run_in_root(unit, &format!("{TESTS}/test-llama-archs"), options, &save, self.patience())?;
        let on_gpu = Unit { left_out: Vec::new(), environment, ..*unit };
        let mut cases = Vec::new();
        for model in models {
            let file = format!("{WORK}/{model}.gguf");
            let asked =
                ["-m", &file, "-n", "64", "-p", "x", "-no-cnv", "--no-warmup", "--temp", temperature, "-s", "3"];
            let exactly = ["-fa", "off", "-ctk", "f32", "-ctv", "f32", "-v"];
            let write = |unit: &Unit<'_>, device: &[&str]| {
                let arguments: Vec<_> = asked.iter().chain(&exactly).chain(device).copied().collect();
                machine.run_in_root(unit, COMPLETION, options, &arguments, self.patience())
            };
            let (by_cpu, by_gpu) = (write(unit, &["--device", "none", "-ngl", "0"])?, write(&on_gpu, &["-ngl", "99"])?);
            let outcome = match unit.name == TEXT_BATCH && !by_gpu.stderr.contains(WAS_BATCHED) {
                true => Outcome::Failed(format!("without a batch: {}", by_gpu.why())),
                false => compare(&by_cpu, &by_gpu),
            };
            cases.push(Case::of(unit.name, model, outcome));
        }
        Ok(cases)
    }

    /// The cases, and the program itself if it has not come to its end.
    fn with_end(&self, unit: &Unit<'_>, ran: &Ran, cases: Vec<(String, Outcome)>) -> Vec<Case> {
        let failed = cases.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
        let mut all: Vec<_> = cases.into_iter().map(|(name, outcome)| Case::of(unit.name, &name, outcome)).collect();
        if ran.code != Some(0) && !failed || all.is_empty() {
            all.push(Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) });
        }
        all
    }
}

/// Whether both wrote the same tokens, and the GPU's run was on the GPU.
fn compare(by_cpu: &Ran, by_gpu: &Ran) -> Outcome {
    let Some(expected) = tokens(&by_cpu.stdout) else {
        return Outcome::Failed(format!("on the CPU: {}", by_cpu.why()));
    };
    if !by_gpu.stderr.contains("using device ROCm0") || by_cpu.stderr.contains("using device ROCm0") {
        return Outcome::Failed(format!("not on the GPU: {}", by_gpu.why()));
    }
    match tokens(&by_gpu.stdout) {
        Some(seen) if seen == expected && by_gpu.code == Some(0) => Outcome::Passed,
        Some(seen) if seen != expected => Outcome::Failed(format!("{seen} instead of {expected}")),
        _ => Outcome::Failed(by_gpu.why()),
    }
}

impl Suite for Ggml {
    fn name(&self) -> &'static str {
        "ggml"
    }

    fn about(&self) -> &'static str {
        "llama.cpp on HIP against its CPU backend: operations, logits, text of models made here"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["gcc", "libc6-dev"]
    }

    fn source(&self) -> Source {
        Source::Root { suite: "sid", packages: &["libggml0-backend-hip", "llama.cpp-tests", "llama.cpp-tools"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx1030", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(900)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        let operations = OPERATIONS.iter().map(|(name, _)| format!("ops/{name}"));
        let others = [ARCHS].into_iter().chain(WRITINGS.iter().map(|writing| writing.name));
        Ok(others.map(str::to_owned).chain(operations).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        match unit.name {
            TEXT_BATCH => Memory::Batch.compile(unit.at),
            _ => Ok(Vec::new()),
        }
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        match unit {
            // Sums by atomics have another order each time: a model that is saved and loaded has to
            // have the same logits, to the bit.
            ARCHS => &["--vram", "4G", "--threads", "1"],
            TEXT_OVERSUBSCRIBED => &["--xnack", "--vram", "16M"],
            _ => &["--vram", "4G"],
        }
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[TEXT_BATCH, "ops/NORM", "ops/MUL_MAT", "ops/SOFT_MAX", "ops/ROPE"]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let writing = WRITINGS.iter().find(|writing| writing.name == unit.name);
        match (writing, unit.name) {
            (Some(writing), _) => self.text(machine, unit, writing),
            (None, ARCHS) => self.architectures(machine, unit),
            (None, name) => self.operation(machine, unit, name.trim_start_matches("ops/")),
        }
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code {
            Some(0) => Outcome::Passed,
            _ => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("cu.handler=v_fma_f32", "ops/NORM", "gfx900")] }
    }
}
