// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Machine code, kernel descriptors and arguments of fuzz bytes on both engines, in a world of a
//! few pages. There is no crash and no access to anything else, and both engines end alike.

use std::sync::{Mutex, OnceLock, PoisonError};

use arbitrary::{Result, Unstructured};
use vkfd_cu::fast::Engine;
use vkfd_cu::launch::{self, Descriptor, Launch, Scratch, Sizes, Turn, DESCRIPTOR_BYTES};
use vkfd_cu::reference::Reference;
use vkfd_cu::{Apertures, Exit, Group, Lds, Mode, Place, Row, Watched, Wave, World};
use vkfd_isa::{encodings, Encoding, Operand, Target};
use vkfd_kernels::Image;

use super::bounded::{install, Bounded, BASE, CODE_BYTES, DATA_VA};

const APERTURES: Apertures = Apertures { shared: 1 << 16, private: 2 << 16 };
/// How often a wave, or a work-group, is run before it is left alone, and for how many
/// instructions.
const TURNS: u32 = 8;
const BUDGET: u32 = 256;

/// The engines and their world, made once.
struct Bench {
    world: Bounded,
    fast: [Engine; Target::ALL.len()],
}

fn with_bench(run: impl FnOnce(&mut Bench)) {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let bench = BENCH.get_or_init(|| {
        install();
        Mutex::new(Bench { world: Bounded::new(), fast: Target::ALL.map(Engine::new) })
    });
    run(&mut bench.lock().unwrap_or_else(PoisonError::into_inner));
}

// SAFETY: the world's memory is its own, and the mutex lets one thread at a time have it.
unsafe impl Send for Bench {}

fn table(target: Target) -> &'static [Encoding] {
    static TABLES: OnceLock<[Vec<Encoding>; Target::ALL.len()]> = OnceLock::new();
    &TABLES.get_or_init(|| Target::ALL.map(|target| encodings(target).collect()))[target as usize]
}

fn target(input: &mut Unstructured<'_>) -> Result<Target> {
    input.choose(&Target::ALL).copied()
}

/// Instructions: of each the table's encoding with fields by chance, mostly small, or a word of any
/// kind.
fn instructions(input: &mut Unstructured<'_>, target: Target, most: usize) -> Vec<u8> {
    let mut code = Vec::new();
    while code.len() < most && !input.is_empty() {
        let Ok(words) = instruction(input, target) else { break };
        code.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    code
}

fn instruction(input: &mut Unstructured<'_>, target: Target) -> Result<Vec<u32>> {
    let choice = input.arbitrary::<u8>()?;
    if choice < 8 {
        return Ok(vec![input.arbitrary()?]);
    }
    let encoding = input.choose(table(target))?;
    let mut words = encoding.value;
    for field in &encoding.fields {
        let small = input.arbitrary::<u8>()?;
        let value = match field.width() {
            1 if choice % 4 != 0 => 0,
            // Registers that there are.
            8 => u32::from(small & 0x3f) * u32::from(choice % 8 != 1),
            9 | 10 => match small >> 6 {
                0 => 128 + u32::from(small & 0x3f),
                1 => u32::from(small & 0x3f),
                2 => 256 + u32::from(small & 0x1f),
                _ => u32::from(input.arbitrary::<u16>()?),
            },
            32 => input.arbitrary()?,
            _ => u32::from(small),
        };
        field.set(&mut words, value);
    }
    let mut words = words[..encoding.words].to_vec();
    if choice % 16 == 9 {
        // A literal, if it has one.
        words.push(input.arbitrary()?);
    }
    Ok(words)
}

/// Values that registers begin with: addresses of the data, small numbers, anything.
fn value(input: &mut Unstructured<'_>, odd: bool) -> u32 {
    let choice = input.arbitrary::<u8>().unwrap_or(0);
    let [low, high] = [DATA_VA & 0xffff_ffff, DATA_VA >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    match choice >> 5 {
        0..=3 if odd => high,
        0..=2 => low.wrapping_add(u32::from(choice & 0x1f) * 4),
        3 => low.wrapping_add(input.arbitrary::<u16>().unwrap_or(0).into()),
        4 => u32::from(choice & 0x1f),
        5 => f32::from(choice & 0x1f).to_bits(),
        6 => APERTURES.shared << (choice & 1),
        _ => input.arbitrary().unwrap_or(0),
    }
}

fn wave(input: &mut Unstructured<'_>, target: Target) -> Wave {
    let lanes = if target.is_rdna() && input.arbitrary().unwrap_or(false) { 32 } else { 64 };
    let mut wave = Wave {
        target,
        lanes,
        pc: BASE,
        scalar: [0; 128],
        scc: false,
        mode: Mode::DEFAULT,
        // Fewer than code can name.
        rows: vec![Row::ZERO; 48],
        acc: if target.is_cdna() { 32 } else { 48 },
        sgprs: 64,
        flat_scratch: DATA_VA + 0x1000,
        trapsts: 0,
        done: 0,
        index: 0,
    };
    if input.ratio(1, 4).unwrap_or(false) {
        wave.mode = Mode(input.arbitrary::<u32>().unwrap_or(0) & 0x80_03ff);
    }
    for (n, word) in wave.scalar.iter_mut().enumerate().take(102) {
        *word = value(input, n % 2 == 1);
    }
    for (n, row) in wave.rows.iter_mut().enumerate() {
        let (first, step) = (value(input, n % 2 == 1), input.arbitrary::<u8>().unwrap_or(0));
        let step = if n % 2 == 1 { step & 1 } else { step & 0x1f };
        row.0 = std::array::from_fn(|lane| first.wrapping_add(u32::try_from(lane).unwrap_or(0) * u32::from(step)));
    }
    wave.set_pair(Operand::EXEC, input.arbitrary().unwrap_or(u64::MAX) | 1);
    wave.set_pair(Operand::VCC, input.arbitrary().unwrap_or(0));
    wave
}

/// How a run ended; what was not decided within the turns is none.
fn ended<E: launch::Engine>(engine: &mut E, wave: &mut Wave, group: &mut Group, world: &mut Bounded) -> Option<Exit> {
    for _ in 0..TURNS {
        match engine.run(wave, group, world, BUDGET) {
            Exit::Yield | Exit::Barrier | Exit::Sleep => {}
            Exit::Interrupt(event) => world.interrupt(event),
            Exit::Miss(miss) => {
                assert!(world.settle(&miss).is_err());
                return Some(Exit::Miss(miss));
            }
            exit => return Some(exit),
        }
    }
    None
}

/// One wave runs machine code. First the target, then registers, then data, then instructions.
pub fn machine_code(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(target) = target(&mut input) else { return };
    let start = wave(&mut input, target);
    let memory = input.arbitrary::<[u8; 32]>().unwrap_or([0; 32]).repeat(640);
    let code = instructions(&mut input, target, CODE_BYTES - 8);
    with_bench(|bench| {
        let mut ends = Vec::new();
        for fast in [false, true] {
            bench.world.load(&code, &memory);
            let mut wave = start.clone();
            let mut group =
                Group { lds: Lds::new(1024), apertures: APERTURES, watch: Watched::default(), place: Place::default() };
            let exit = if fast {
                let engine = &mut bench.fast[target as usize];
                engine.invalidate();
                ended(engine, &mut wave, &mut group, &mut bench.world)
            } else {
                ended(&mut Reference, &mut wave, &mut group, &mut bench.world)
            };
            ends.push((exit, wave, group.lds, bench.world.data(), bench.world.events.clone()));
        }
        let [slow, fast] = &ends[..] else { return };
        let (Some(one), Some(other)) = (&slow.0, &fast.0) else { return };
        // Where a wave that failed is left is compared, but not what others have seen of it before.
        assert_eq!(
            std::mem::discriminant(one),
            std::mem::discriminant(other),
            "{one:x?} and {other:x?} at {:#x}",
            slow.1.pc
        );
        assert_eq!(slow.1.pc, fast.1.pc, "{one:x?}");
        if matches!(one, Exit::End) {
            assert!(slow.1 == fast.1, "the registers differ");
            assert!(slow.2 == fast.2, "LDS differs");
            assert!(slow.3 == fast.3, "memory differs");
            assert_eq!(slow.4, fast.4, "events");
        }
    });
}

/// A kernel object and a launch of it. The descriptor is that of a kernel, or any bytes; sizes,
/// user registers, code.
pub fn kernel_descriptors(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(target) = target(&mut input) else { return };
    let mut bytes = [0; DESCRIPTOR_BYTES];
    let plausible = input.arbitrary().unwrap_or(false);
    if input.fill_buffer(&mut bytes).is_err() {
        return;
    }
    if plausible {
        // The entry is the code's begin; scratch, modes and registers stay by chance.
        bytes[16..24].fill(0);
        bytes[44] &= 0x0f;
        bytes[46] = 0;
        bytes[52] = bytes[52] & 1 | 16 << 1;
        bytes[53] &= 0x0f;
        bytes[56] &= 0x0a;
        bytes[57] &= 0x04;
        bytes[58..60].fill(0);
    }
    let Ok(descriptor) = Descriptor::parse(target, BASE, &bytes) else { return };
    let sizes = |input: &mut Unstructured<'_>| -> Result<[u32; 3]> {
        let mut sizes = [0; 3];
        for size in &mut sizes {
            *size = if input.ratio(1, 8)? { input.arbitrary()? } else { u32::from(input.arbitrary::<u8>()?) };
        }
        Ok(sizes)
    };
    let Ok((grid, group)) = sizes(&mut input).and_then(|grid| Ok((grid, sizes(&mut input)?))) else { return };
    let dimensions = input.int_in_range(0..=4).unwrap_or(1);
    let Ok(sizes) = Sizes::new(dimensions, grid, group) else { return };
    let launch = Launch {
        program: descriptor.program.clone(),
        sizes,
        start: [0; 3],
        user: (0..16).map(|n| value(&mut input, n % 2 == 1)).collect(),
        lds: u32::from(input.arbitrary::<u16>().unwrap_or(0)) * 2,
        scratch: input.arbitrary().unwrap_or(false).then_some(Scratch { base: DATA_VA, wave_bytes: 1024, waves: 16 }),
        apertures: APERTURES,
        watch: None,
    };
    if launch.check().is_err() {
        return;
    }
    let code = instructions(&mut input, target, 1024);
    let last = launch.groups().saturating_sub(1);
    with_bench(|bench| {
        for number in [0, last] {
            bench.world.load(&code, &[]);
            run_group(&launch, number, &mut Reference, &mut bench.world);
            bench.world.load(&code, &[]);
            let engine = &mut bench.fast[target as usize];
            engine.invalidate();
            run_group(&launch, number, engine, &mut bench.world);
        }
    });
}

fn run_group<E: launch::Engine>(launch: &Launch, number: u64, engine: &mut E, world: &mut Bounded) {
    let waves = launch.group_waves();
    let mut group = launch.workgroup(number, (0..waves).collect(), Place::default());
    for _ in 0..TURNS {
        match group.run(engine, world, BUDGET) {
            Turn::More { .. } => {}
            Turn::Done | Turn::Stop { .. } => return,
        }
    }
}

/// A kernel of the client library with arguments by chance. First the target, the kernel, the
/// arguments, then the data.
pub fn kernel_arguments(data: &[u8]) {
    static IMAGES: OnceLock<[Image; Target::ALL.len()]> = OnceLock::new();
    let images = IMAGES.get_or_init(|| {
        Target::ALL
            .map(|target| Image::new(vkfd_kernels::code(target.version()).expect("a code object")).expect("a good one"))
    });
    let mut input = Unstructured::new(data);
    let Ok(target) = target(&mut input) else { return };
    let image = &images[target as usize];
    let Ok(kernel) = input.choose(image.kernels()) else { return };
    // The code begins at a page of its own, so that the image may be moved by whole pages.
    let whole = image.at(BASE);
    let object = usize::try_from(kernel.descriptor).unwrap_or(0);
    let Some(bytes) = whole.get(object..).and_then(|rest| rest.first_chunk::<DESCRIPTOR_BYTES>()) else { return };
    let Ok(descriptor) = Descriptor::parse(target, BASE + kernel.descriptor, bytes) else { return };
    // As much code as there is room for, from the kernel on.
    let begin = usize::try_from(descriptor.program.entry - BASE).unwrap_or(0);
    let code = &whole[begin.min(whole.len())..];
    let code = &code[..code.len().min(CODE_BYTES)];
    let mut program = descriptor.program.clone();
    program.entry = BASE;
    let mut arguments: Vec<u8> = Vec::new();
    for n in 0..kernel.kernarg_bytes.div_ceil(4) {
        arguments.extend(value(&mut input, n % 2 == 1).to_le_bytes());
    }
    let mut memory = input.take_rest().to_vec();
    memory.truncate(0x4000);
    memory.resize(0x4000, 0x5a);
    // The arguments are in the page that is only read.
    memory.extend(arguments);
    let at = DATA_VA + 0x4000;
    let mut user = Vec::new();
    for (bit, words) in [4, 2, 2, 2, 2, 2, 1].into_iter().enumerate() {
        if descriptor.properties >> bit & 1 != 0 {
            let here = if 1 << bit == Descriptor::KERNARG_PTR { at } else { 0 };
            user.extend(
                [here, here >> 32, 0, 0].into_iter().take(words).map(|w| u32::try_from(w & 0xffff_ffff).unwrap_or(0)),
            );
        }
    }
    let sizes = Sizes::new(1, [600, 1, 1], [256, 1, 1]).expect("sizes");
    let lds = kernel.group_bytes;
    let launch = Launch { program, sizes, start: [0; 3], user, lds, scratch: None, apertures: APERTURES, watch: None };
    if launch.check().is_err() {
        return;
    }
    with_bench(|bench| {
        for number in [0, launch.groups() - 1] {
            bench.world.load(code, &memory);
            run_group(&launch, number, &mut Reference, &mut bench.world);
            bench.world.load(code, &memory);
            let engine = &mut bench.fast[target as usize];
            engine.invalidate();
            run_group(&launch, number, engine, &mut bench.world);
        }
    });
}
