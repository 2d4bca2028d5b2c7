// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The records of LLVM's TableGen as `llvm-tblgen --dump-json` writes them.
//!
//! The file is one object of 400 MB with 100,000 records. It is read as a stream: each record is
//! first asked for its superclasses, and only those that the tables need are kept.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::Context;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A reference to another record.
#[derive(Clone, Debug, Deserialize)]
pub struct Def {
    pub def: String,
}

/// A bit of an encoding.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Bit {
    Fixed(u8),
    Var(VarBit),
}

/// A bit that an operand supplies; expressions that LLVM has left unresolved have no `var`.
#[derive(Clone, Debug, Deserialize)]
pub struct VarBit {
    pub var: Option<String>,
    pub index: Option<u8>,
    #[allow(dead_code, reason = "shown by Debug")]
    pub printable: String,
}

/// A dag: an operator and arguments with names.
#[derive(Clone, Debug, Deserialize)]
pub struct Dag {
    pub operator: Option<Def>,
    #[serde(default)]
    pub args: Vec<(Argument, Option<String>)>,
}

/// An argument of a dag.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Argument {
    Def(Def),
    Dag(Dag),
    Other(IgnoredAny),
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<u8>::deserialize(deserializer)?.unwrap_or(0) != 0)
}

fn bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bits = Vec::<Option<Bit>>::deserialize(deserializer)?;
    Ok(bits.iter().rev().fold(0, |value, bit| value << 1 | u64::from(matches!(bit, Some(Bit::Fixed(1))))))
}

/// A number, as such or as bits.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u8),
        Bits(Vec<Option<Bit>>),
        Other(IgnoredAny),
    }
    Ok(match Number::deserialize(deserializer)? {
        Number::Whole(number) => number,
        Number::Bits(bits) => {
            bits.iter().rev().fold(0, |value, bit| value << 1 | u8::from(matches!(bit, Some(Bit::Fixed(1)))))
        }
        Number::Other(_) => 0,
    })
}

/// An instruction.
#[derive(Clone, Debug, Deserialize)]
pub struct Instruction {
    #[serde(rename = "!name")]
    pub name: String,
    #[serde(rename = "AsmString", default)]
    pub asm: Option<String>,
    #[serde(rename = "DecoderNamespace", default)]
    pub namespace: Option<String>,
    #[serde(rename = "Inst", default)]
    pub bits: Option<Vec<Option<Bit>>>,
    #[serde(rename = "Size", default)]
    pub size: Option<u8>,
    #[serde(rename = "OutOperandList")]
    pub outs: Dag,
    #[serde(rename = "InOperandList")]
    pub ins: Dag,
    #[serde(rename = "Predicates", default)]
    pub predicates: Vec<Def>,
    #[serde(rename = "PseudoInstr", default)]
    pub pseudo: Option<String>,
    #[serde(rename = "Defs", default)]
    pub defs: Vec<Def>,
    #[serde(rename = "Uses", default)]
    pub uses: Vec<Def>,
    #[serde(rename = "isPseudo", deserialize_with = "flag", default)]
    pub is_pseudo: bool,
    #[serde(rename = "isCodeGenOnly", deserialize_with = "flag", default)]
    pub is_codegen_only: bool,
    #[serde(rename = "isAsmParserOnly", deserialize_with = "flag", default)]
    pub is_asm_only: bool,
    /// Bits of `SIInstrFlags`.
    #[serde(rename = "TSFlags", deserialize_with = "bits", default)]
    pub flags: u64,
    #[serde(rename = "IsSingle", deserialize_with = "flag", default)]
    pub is_single: bool,
    /// Of images: what the operation takes, and how this encoding has it.
    #[serde(rename = "BaseOpcode", default)]
    pub image: Option<Def>,
    #[serde(rename = "MIMGEncoding", default)]
    pub image_encoding: Option<Def>,
    #[serde(rename = "VDataDwords", deserialize_with = "number", default)]
    pub data_dwords: u8,
    #[serde(rename = "VAddrDwords", deserialize_with = "number", default)]
    pub address_dwords: u8,
}

/// The type of an operand.
#[derive(Clone, Debug, Deserialize)]
pub struct OperandType {
    #[serde(rename = "DecoderMethod", default)]
    pub decoder: Option<String>,
    #[serde(rename = "OperandType", default)]
    pub operand: Option<String>,
    #[serde(rename = "PrintMethod", default)]
    pub print: Option<String>,
    #[serde(rename = "RegClass", default)]
    pub class: Option<Def>,
}

/// What an image operation takes.
#[derive(Clone, Debug, Deserialize)]
pub struct ImageOperation {
    #[serde(rename = "NumExtraArgs", deserialize_with = "number")]
    pub extra: u8,
    #[serde(rename = "Gradients", deserialize_with = "flag")]
    pub gradients: bool,
    #[serde(rename = "G16", deserialize_with = "flag")]
    pub short_gradients: bool,
    #[serde(rename = "Coordinates", deserialize_with = "flag")]
    pub coordinates: bool,
    #[serde(rename = "LodOrClampOrMip", deserialize_with = "flag")]
    pub lod: bool,
    #[serde(rename = "BVH", deserialize_with = "flag")]
    pub bvh: bool,
    #[serde(rename = "A16", deserialize_with = "flag")]
    pub a16: bool,
}

/// A subtarget feature.
#[derive(Clone, Debug, Deserialize)]
pub struct Feature {
    #[serde(rename = "Implies")]
    pub implies: Vec<Def>,
}

/// A processor.
#[derive(Clone, Debug, Deserialize)]
pub struct Processor {
    #[serde(rename = "Name")]
    pub name: String,
    #[serde(rename = "Features")]
    pub features: Vec<Def>,
}

/// A predicate; those that concern the assembler have a condition over features.
#[derive(Clone, Debug, Deserialize)]
pub struct Predicate {
    #[serde(rename = "AssemblerMatcherPredicate", deserialize_with = "flag", default)]
    pub for_assembler: bool,
    #[serde(rename = "AssemblerCondDag", default)]
    pub condition: Option<Dag>,
}

/// What is kept of the file.
#[derive(Debug, Default)]
pub struct Records {
    pub instructions: Vec<Instruction>,
    pub operands: HashMap<String, OperandType>,
    pub features: HashMap<String, Feature>,
    pub processors: Vec<Processor>,
    pub predicates: HashMap<String, Predicate>,
    pub images: HashMap<String, ImageOperation>,
}

#[derive(Deserialize)]
struct Peek {
    #[serde(rename = "!superclasses", default)]
    superclasses: Vec<String>,
}

impl Records {
    /// Reads the file.
    pub fn read(path: &Path) -> anyhow::Result<Records> {
        let file = File::open(path).with_context(|| format!("{}", path.display()))?;
        let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 20, file));
        let mut records = Records::default();
        json.deserialize_map(Collect(&mut records)).with_context(|| format!("{}", path.display()))?;
        records.instructions.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    fn keep(&mut self, name: String, text: &str) -> serde_json::Result<()> {
        let classes = serde_json::from_str::<Peek>(text)?.superclasses;
        let is = |class: &str| classes.iter().any(|c| c == class);
        if is("MIMGBaseOpcode") {
            self.images.insert(name.clone(), serde_json::from_str(text)?);
        }
        if is("InstSI") {
            self.instructions.push(serde_json::from_str(text)?);
        } else if is("DAGOperand") {
            self.operands.insert(name, serde_json::from_str(text)?);
        } else if is("SubtargetFeature") {
            self.features.insert(name, serde_json::from_str(text)?);
        } else if is("Processor") {
            self.processors.push(serde_json::from_str(text)?);
        } else if is("Predicate") {
            self.predicates.insert(name, serde_json::from_str(text)?);
        }
        Ok(())
    }
}

struct Collect<'a>(&'a mut Records);

impl<'de> Visitor<'de> for Collect<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the records of a TableGen dump")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<Box<RawValue>>()?;
            if !name.starts_with('!') {
                self.0.keep(name, value.get()).map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }
}
