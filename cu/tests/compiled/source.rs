// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random C programs without undefined behaviour, each a function of sixteen words that gives as
//! many results.
//!
//! Several of them make a unit, one file for the compiler, since starting it costs more than a
//! program does. A program is the same in every unit.
//!
//! `HIDE` and `COPY` avoid four bugs of LLVM 19's AMDGPU back end. The compiler knows nothing about
//! `HIDE`'s value, and `COPY`'s value has a separate register:
//!
//! - `0 - x` becomes a modifier of the instruction that uses it, as if it were `-x`, and +0 - +0 is
//!   -0 (`SelectVOP3Mods`);
//! - unsigned division takes a numerator with many sign bits, such as `0xffffffff`, for a small
//!   one, and divides by floating point (`getDivNumBits`);
//! - a product that is made a `_Float16` becomes `v_fma_mixlo_f16` with +0 as its addend, which
//!   makes a product of -0 +0 (`MadFmaMixPats`; where that instruction is, from gfx906 on);
//! - what a call returns is not seen as a change of its register, so that two moves around the call
//!   become a `v_swap_b32` that loses it (`matchSwap`).

use crate::support::Numbers;
use std::fmt::{self, Display, Formatter, Write};
use std::ops::Range;

/// Words that an item reads, and writes.
pub const WORDS: usize = 16;

/// Variables of each type that a program has.
const EACH: u64 = 4;

/// Types of variables: letter, C type, whether it is a floating-point one, and its width.
const TYPES: [(char, &str, bool, u32); 6] = [
    ('u', "unsigned", false, 32),
    ('s', "int", false, 32),
    ('l', "unsigned long", false, 64),
    ('f', "float", true, 32),
    ('d', "double", true, 64),
    ('h', "_Float16", true, 16),
];

/// A file of the programs `seeds`: for the GPU, a kernel `k` with the seed's number for each. For
/// the host, a `main` that reads each program's `items` times [`WORDS`] words from its first
/// argument's file, one after the other. It writes the results to the second argument's file.
pub fn unit(seeds: Range<u64>, items: usize) -> String {
    let mut text = String::from(
        "#ifdef __AMDGCN__\n\
         #define HIDE(type, x) ({ type hidden = (x); __asm__(\"\" : \"+v\"(hidden)); hidden; })\n\
         #define COPY(x) ({ unsigned copy; __asm__(\"v_mov_b32 %0, %1\" : \"=v\"(copy) : \"v\"(x)); copy; })\n\
         #else\n\
         #define HIDE(type, x) (x)\n\
         #define COPY(x) (x)\n\
         #endif\n\
         static unsigned bits32(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return x != x ? 0x7fc00000u : u; }\n\
         static unsigned bits64(double x) { unsigned long u; __builtin_memcpy(&u, &x, 8); return x != x ? 0x7ff80000u : (unsigned)(u ^ u >> 32); }\n\
         static unsigned bits16(_Float16 x) { unsigned short u; __builtin_memcpy(&u, &x, 2); return x != x ? 0x7e00u : u; }\n",
    );
    let mut calls = String::new();
    for seed in seeds {
        let program = Program::new(seed);
        let _ = write!(
            text,
            "{program}#ifdef __AMDGCN__\n\
             __attribute__((amdgpu_kernel)) void k{seed}(const unsigned *in, unsigned *out) {{\n\
             \x20 unsigned i = __builtin_amdgcn_workitem_id_x();\n\
             \x20 body{seed}(in + i * {WORDS}, out + i * {WORDS});\n}}\n#endif\n",
        );
        let _ = writeln!(calls, "  if (run(from, to, body{seed})) return 1;");
    }
    let words = items * WORDS;
    let _ = write!(
        text,
        "#ifndef __AMDGCN__\n#include <stdio.h>\n\
         static int run(FILE *from, FILE *to, void (*body)(const unsigned *, unsigned *)) {{\n\
         \x20 static unsigned in[{words}], out[{words}];\n\
         \x20 if (fread(in, 4, {words}, from) != {words}) return 1;\n\
         \x20 for (unsigned i = 0; i < {items}; i++) body(in + i * {WORDS}, out + i * {WORDS});\n\
         \x20 return fwrite(out, 4, {words}, to) != {words};\n}}\n\
         int main(int argc, char **argv) {{\n\
         \x20 FILE *from = fopen(argv[1], \"rb\"), *to = fopen(argv[2], \"wb\");\n\
         \x20 if (!from || !to) return 1;\n{calls}  return fclose(to);\n}}\n#endif\n",
    );
    text
}

/// A program, made from its seed.
struct Program {
    seed: u64,
    numbers: Numbers,
    text: String,
    loops: u32,
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut program = Program { seed, numbers: Numbers(seed), text: String::new(), loops: 0 };
        program.helper();
        program.body();
        program
    }

    fn below(&mut self, count: u64) -> u64 {
        self.numbers.next() % count
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        let at = self.below(from.len() as u64) as usize;
        from[at]
    }

    /// A function that is called, so that calls and the stack have a part.
    fn helper(&mut self) {
        let (a, seed) = (self.below(31) + 1, self.seed);
        let _ = write!(
            self.text,
            "__attribute__((noinline)) static unsigned mix{seed}(unsigned a, unsigned b) {{\n\
             \x20 unsigned t[8];\n\
             \x20 for (unsigned j = 0; j < 8; j++) t[j] = a * (j + {a}u) ^ b;\n\
             \x20 return t[b & 7] + t[(a >> 3) & 7] + (a << (b & 31) | b >> (a & 15));\n}}\n"
        );
    }

    fn body(&mut self) {
        let _ = writeln!(self.text, "static void body{}(const unsigned *in, unsigned *out) {{", self.seed);
        for (n, (letter, name, float, width)) in TYPES.into_iter().enumerate() {
            for at in 0..EACH {
                let word = (n as u64 * 3 + at) % WORDS as u64;
                let first = match (float, width) {
                    (false, 64) => format!("((unsigned long)in[{word}] << 32 | in[{}])", (word + 5) % 16),
                    (false, _) => format!("in[{word}]"),
                    // Numbers of many sizes, among them some whose quotients are denormal or
                    // overflow.
                    (true, 64) => format!("(double)(int)in[{word}] * (in[{0}] & 1 ? 1e-300 : in[{0}] & 2 ? 1e250 : 0.001)", (word + 1) % 16),
                    (true, 32) => format!("(float)(int)in[{word}] * (in[{0}] & 1 ? 1e-38f : in[{0}] & 2 ? 1e25f : 0.001f)", (word + 1) % 16),
                    _ => format!("(_Float16)((int)(in[{word}] % 2001u) - 1000) * (in[{0}] & 1 ? (_Float16)0.0001 : (_Float16)1.5)", (word + 1) % 16),
                };
                let _ = writeln!(self.text, "  {name} {letter}{at} = {first};");
            }
        }
        self.text.push_str("  unsigned a[8];\n  for (int j = 0; j < 8; j++) a[j] = in[j] ^ in[15 - j];\n");
        let count = 12 + self.below(20);
        for _ in 0..count {
            self.statement(2);
        }
        // Results: integers and the bits of numbers, of which NaNs are made one.
        let mut at = 0;
        for (letter, _, float, width) in TYPES {
            let value = |n: u64| format!("{letter}{n}");
            let (x, y) = (value(0), value(1));
            let both = match (float, width) {
                (false, 64) => [format!("(unsigned)({x} ^ {x} >> 32)"), format!("(unsigned)({y} + ({y} >> 32))")],
                (false, _) => [x, y],
                (true, 64) => [format!("bits64({x})"), format!("bits64({y})")],
                (true, 32) => [format!("bits32({x})"), format!("bits32({y})")],
                _ => [format!("bits16({x})"), format!("bits16({y})")],
            };
            for text in both {
                let _ = writeln!(self.text, "  out[{at}] = {text};");
                at += 1;
            }
        }
        let _ = writeln!(self.text, "  out[12] = a[0] ^ a[3];\n  out[13] = a[7] + a[5];\n  out[14] = u2 ^ u3 ^ s2 ^ s3;\n  out[15] = bits32(f2) ^ bits64(d2);\n}}");
    }

    /// A variable of the type.
    fn variable(&mut self, letter: char) -> String {
        format!("{letter}{}", self.below(EACH))
    }

    fn statement(&mut self, depth: u32) {
        match self.below(if depth == 0 { 7 } else { 11 }) {
            0..=5 => self.assignment(),
            6 => {
                let (at, value) = (self.expression('u', 1), self.expression('u', 1));
                let operator = self.pick(&["=", "+=", "^=", "-="]);
                let _ = writeln!(self.text, "  a[({at}) & 7] {operator} {value};");
            }
            7 | 8 => {
                let condition = self.condition();
                let _ = writeln!(self.text, "  if ({condition}) {{");
                self.statement(depth - 1);
                self.statement(depth - 1);
                if self.below(2) == 0 {
                    self.text.push_str("  } else {\n");
                    self.statement(depth - 1);
                }
                self.text.push_str("  }\n");
            }
            9 => {
                let bound = self.variable('u');
                let name = format!("j{}", self.loops);
                self.loops += 1;
                let _ = writeln!(
                    self.text,
                    "  for (unsigned {name} = 0, n{name} = {bound} & 7; {name} < n{name}; {name}++) {{"
                );
                self.statement(depth - 1);
                let to = self.variable('u');
                let _ = writeln!(self.text, "  {to} += {name} * 0x9e3779b9u;");
                self.text.push_str("  }\n");
            }
            _ => {
                let (to, of) = (self.variable('u'), self.variable('u'));
                let _ = writeln!(self.text, "  switch ({of} % 5u) {{");
                for case in 0..4 {
                    let _ = writeln!(self.text, "  case {case}:");
                    self.statement(0);
                    self.text.push_str("  break;\n");
                }
                let _ = writeln!(self.text, "  default: {to} = ~{to};\n  }}");
            }
        }
    }

    fn assignment(&mut self) {
        let (letter, ..) = TYPES[self.below(TYPES.len() as u64) as usize];
        let to = self.variable(letter);
        let value = self.expression(letter, 2);
        let _ = writeln!(self.text, "  {to} = {value};");
    }

    fn condition(&mut self) -> String {
        let (letter, ..) = TYPES[self.below(TYPES.len() as u64) as usize];
        let (a, b) = (self.expression(letter, 1), self.expression(letter, 1));
        let operator = self.pick(&["<", ">", "<=", ">=", "==", "!="]);
        format!("({a}) {operator} ({b})")
    }

    fn expression(&mut self, letter: char, depth: u32) -> String {
        if depth == 0 || self.below(6) == 0 {
            return self.leaf(letter);
        }
        match letter {
            'u' => self.unsigned(depth),
            's' => self.signed(depth),
            'l' => self.long(depth),
            _ => self.float(letter, depth),
        }
    }

    fn leaf(&mut self, letter: char) -> String {
        if self.below(4) != 0 {
            return self.variable(letter);
        }
        let number = self.numbers.word();
        match letter {
            'u' => self.pick(&["0u", "1u", "31u", "0xffffffffu", "0x80000000u", "12345u"]).into(),
            's' => self.pick(&["0", "-1", "7", "(-2147483647 - 1)", "2147483647"]).into(),
            'l' => format!("{number}ul * 0x100000001ul"),
            'f' => self.pick(&["0.0f", "-1.5f", "3.0f", "1e-20f", "1e20f", "0.3333f"]).into(),
            'd' => self.pick(&["0.0", "-1.5", "3.0", "1e-200", "1e200", "0.3333"]).into(),
            _ => self
                .pick(&["(_Float16)0.0", "(_Float16)-1.5", "(_Float16)3.0", "(_Float16)0.01", "(_Float16)900.0"])
                .into(),
        }
    }

    fn unsigned(&mut self, depth: u32) -> String {
        let (a, b) = (self.expression('u', depth - 1), self.expression('u', depth - 1));
        // Division of numbers of 24 bits is another sequence of instructions.
        let small = self.pick(&["", " & 0x7fffff"]);
        match self.below(16) {
            0 => format!("({a} + {b})"),
            1 => format!("({a} - {b})"),
            2 => format!("({a} * {b})"),
            3 => format!("({a} & {b})"),
            4 => format!("({a} | {b})"),
            5 => format!("({a} ^ ~{b})"),
            6 => format!("({a} << ({b} & 31))"),
            7 => format!("({a} >> ({b} & 31))"),
            8 => format!("(HIDE(unsigned, {a}){small} / ({b} | 1u))"),
            9 => format!("(HIDE(unsigned, {a}){small} % ({b} | 1u))"),
            10 => format!("COPY(mix{}({a}, {b}))", self.seed),
            11 => format!("(unsigned)__builtin_popcount({a})"),
            12 => format!("(unsigned)__builtin_clz({a} | 1u)"),
            13 => format!("__builtin_bswap32({a})"),
            14 => {
                let condition = self.condition();
                format!("({condition} ? {a} : {b})")
            }
            _ => {
                let (letter, low, high) = match self.below(3) {
                    0 => ('f', "-1e9f", "1e9f"),
                    1 => ('d', "-1e9", "1e9"),
                    _ => ('h', "(_Float16)-60000.0", "(_Float16)60000.0"),
                };
                let x = self.variable(letter);
                format!("({x} > {low} && {x} < {high} ? (unsigned)(int){x} : {a})")
            }
        }
    }

    fn signed(&mut self, depth: u32) -> String {
        let (a, b) = (self.expression('s', depth - 1), self.expression('s', depth - 1));
        match self.below(10) {
            0 => format!("(int)((unsigned){a} + (unsigned){b})"),
            1 => format!("(int)((unsigned){a} * (unsigned){b})"),
            2 => format!("({a} >> ({b} & 31))"),
            3 => format!("({a} < {b} ? {a} : {b})"),
            4 => format!("({a} > {b} ? {a} : {b})"),
            5 => format!("(int)(short){a}"),
            6 => format!("(int)(signed char){a}"),
            // Not by -1, which overflows.
            7 => format!("({a} % (({b} & 0xffff) | 3))"),
            8 => format!("((int)((long){a} * {b} >> 32))"),
            _ => {
                let u = self.expression('u', depth - 1);
                format!("((int){u} >> 3)")
            }
        }
    }

    fn long(&mut self, depth: u32) -> String {
        let (a, b) = (self.expression('l', depth - 1), self.expression('l', depth - 1));
        match self.below(11) {
            0 => format!("({a} + {b})"),
            1 => format!("({a} - {b})"),
            2 => format!("({a} * {b})"),
            3 => format!("({a} << ({b} & 63))"),
            4 => format!("({a} >> ({b} & 63))"),
            5 => format!("((unsigned long)((long){a} >> ({b} & 63)))"),
            6 => format!("(HIDE(unsigned long, {a}) / ({b} | 1))"),
            7 => format!("(unsigned long)__builtin_ctzl({a} | 1ul << 60)"),
            8 => {
                let u = self.expression('u', depth - 1);
                format!("({a} ^ {u})")
            }
            9 => {
                let d = self.variable('d');
                format!("({d} > 0.0 && {d} < 1e18 ? (unsigned long){d} : {a})")
            }
            _ => {
                let condition = self.condition();
                format!("({condition} ? {a} : {b})")
            }
        }
    }

    fn float(&mut self, letter: char, depth: u32) -> String {
        let (a, b) = (self.expression(letter, depth - 1), self.expression(letter, depth - 1));
        let (name, suffix) = match letter {
            'f' => ("float", "f"),
            'd' => ("double", ""),
            _ => ("_Float16", ""),
        };
        match self.below(if letter == 'h' { 9 } else { 12 }) {
            0 => format!("HIDE({name}, {a} + {b})"),
            1 => format!("HIDE({name}, {a} - {b})"),
            2 => format!("({a} * {b})"),
            3 => format!("({a} / {b})"),
            4 => {
                let condition = self.condition();
                format!("({condition} ? {a} : {b})")
            }
            5 => {
                let s = self.variable('s');
                format!("({name})({s} >> 17)")
            }
            6 => {
                let other = self.pick(if letter == 'f' { &["d", "h"] } else { &["f"] }).to_string();
                let x = self.variable(other.chars().next().unwrap_or('f'));
                match letter {
                    'h' => format!("({name})HIDE(float, {x})"),
                    _ => format!("({name}){x}"),
                }
            }
            7 => format!("-({a})"),
            8 => format!("HIDE({name}, {a} * {a} + {b})"),
            9 => format!("__builtin_floor{suffix}({a})"),
            10 => format!("__builtin_fabs{suffix}({a})"),
            _ => format!("__builtin_fma{suffix}({a}, {b}, {a})"),
        }
    }
}
