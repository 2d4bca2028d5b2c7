// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules that are a count of wait states between a producer and a consumer.

use vkfd_isa::{Operand, Target};

use super::matrix;
use super::walk::{Hit, Hits};
use crate::class::Class;
use crate::graph::Graph;
use crate::register::{Role, Use, EXEC, M0, VCC};
use crate::step::Step;

/// Such a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distance {
    pub producer: Class,
    pub not_producer: Class,
    pub part: Part,
    pub consumer: Class,
    pub not_consumer: Class,
    pub operands: Operands,
    /// Instructions that end the hazard whatever the distance.
    pub ends: Class,
    pub states: States,
}

/// What the producer has to do with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It writes it.
    Writes,
    /// It is the vector result.
    Result,
    /// It adds to it.
    Accumulator,
    /// It stores it, and more than 64 bits.
    WideData,
    /// The same in a buffer, with a scalar register as an offset.
    WideDataWithOffset,
    /// Both name the same hardware register.
    HardwareRegister,
    /// It writes TRAPSTS.
    TrapStatus,
    /// It accesses memory; registers do not matter.
    Memory,
    Any,
}

/// Operands of the consumer that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    /// Scalar bases, descriptors and offsets.
    Bases,
    Vectors,
    Scalars,
    /// What the encoding names as a source.
    Explicit,
    /// The first source, a vector register.
    First,
    /// A scalar register that selects a lane.
    Lane,
    Vcc,
    Exec,
    M0,
    Accumulator,
    Factors,
    Results,
    HardwareRegister,
    Nothing,
}

/// How many wait states are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum States {
    Fixed(u32),
    /// On gfx942, and on the others.
    Cdna3(u32, u32),
    MatrixC,
    MatrixAb,
    MatrixRead,
    MatrixOverwrite,
    MatrixCOverwrite,
    DotRead,
    DotOverwrite,
}

/// Wait states that lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    /// The producer, by its index.
    pub by: usize,
    pub needed: u32,
    pub there: u32,
    /// Whether they lack on every way to the consumer, from whichever producer.
    pub everywhere: bool,
}

impl States {
    fn most(self) -> u32 {
        match self {
            States::Fixed(states) => states,
            States::Cdna3(one, other) => one.max(other),
            States::DotRead | States::DotOverwrite => 3,
            _ => matrix::MOST,
        }
    }

    pub fn text(self) -> String {
        match self {
            States::Fixed(states) => states.to_string(),
            States::Cdna3(one, other) => format!("{other}; {one} on gfx942"),
            States::DotRead | States::DotOverwrite => String::from("3"),
            States::MatrixC => String::from("by passes, 0 to 17"),
            States::MatrixAb | States::MatrixOverwrite => String::from("by passes, 4 to 19"),
            States::MatrixRead => String::from("by passes, 4 to 19"),
            States::MatrixCOverwrite => String::from("by passes, 1 to 15"),
        }
    }

    fn needed(self, target: Target, producer: &Step, consumer: &Step, operand: Option<Use>) -> u32 {
        let role = operand.map(|operand| operand.role);
        match self {
            States::Fixed(states) => states,
            States::Cdna3(one, other) => match target {
                Target::Gfx942 => one,
                Target::Gfx900 | Target::Gfx90a | Target::Gfx1030 | Target::Gfx1100 => other,
            },
            States::MatrixC => {
                let result = producer.result();
                let same = result.zip(operand).is_some_and(|(a, b)| (a.first, a.count) == (b.first, b.count));
                matrix::accumulated(target, producer, consumer, same)
            }
            States::MatrixAb => matrix::factor(target, producer),
            States::MatrixRead => matrix::read(target, producer, consumer.class.intersects(Class::MEMORY_OR_EXPORT)),
            States::MatrixOverwrite => matrix::overwritten(target, producer),
            States::MatrixCOverwrite => matrix::accumulator_overwritten(target, producer),
            States::DotRead if producer.op == consumer.op && role == Some(Role::C) => 0,
            States::DotOverwrite if producer.op == consumer.op => 0,
            States::DotRead | States::DotOverwrite => 3,
        }
    }
}

impl Distance {
    /// A producer that is too near to the instruction `at`.
    pub fn check(&self, graph: &Graph, at: usize, target: Target) -> Option<Lack> {
        let consumer = &graph.steps[at];
        if !consumer.class.intersects(self.consumer) || consumer.class.intersects(self.not_consumer) {
            return None;
        }
        let mut worst: Option<Lack> = None;
        let mut look = |operand: Option<Use>| {
            let produces = |step: &Step| self.produces(step, consumer, operand);
            let ends = |step: &Step| step.class.intersects(self.ends);
            let needed = |hit: &Hit| self.states.needed(target, &graph.steps[hit.at], consumer, operand);
            let Hits { hits, on_all } = graph.nearest(at, self.states.most(), produces, ends);
            let everywhere = on_all && hits.iter().all(|hit| hit.most < needed(hit));
            for hit in &hits {
                let needed = needed(hit);
                let lack = needed.saturating_sub(hit.fewest);
                if lack > worst.map_or(0, |worst| worst.needed - worst.there) {
                    worst = Some(Lack { by: hit.at, needed, there: hit.fewest, everywhere });
                }
            }
        };
        if matches!(self.operands, Operands::Nothing | Operands::HardwareRegister) {
            look(None);
        } else {
            self.operands(consumer).for_each(|operand| look(Some(operand)));
        }
        worst
    }

    fn operands<'a>(&self, step: &'a Step) -> impl Iterator<Item = Use> + 'a {
        let chosen = self.operands;
        let whole = |first, count| Use { first, count, role: Role::Implicit };
        let implied = match chosen {
            Operands::Vcc => Some(whole(VCC, 2)),
            Operands::Exec => Some(whole(EXEC, 2)),
            Operands::M0 => Some(whole(M0, 1)),
            _ => None,
        };
        let is_part = step.class.contains(Class::PART);
        let sources = step.reads.iter().filter(move |operand| match chosen {
            Operands::Bases => operand.role == Role::Base && operand.is_scalar(),
            Operands::Vectors => !operand.is_scalar(),
            Operands::Scalars => operand.is_scalar() && operand.first != EXEC,
            Operands::Explicit => {
                let kept = operand.role == Role::Old && is_part;
                operand.role != Role::Implicit && !kept
            }
            Operands::First => operand.role == Role::A && !operand.is_scalar(),
            Operands::Lane => operand.role == Role::B && operand.is_scalar(),
            Operands::Accumulator => operand.role == Role::C,
            Operands::Factors => matches!(operand.role, Role::A | Role::B | Role::Index),
            _ => false,
        });
        let results = step.writes.iter().filter(move |operand| chosen == Operands::Results && !operand.is_scalar());
        implied.into_iter().chain(sources).chain(results)
    }

    fn produces(&self, step: &Step, consumer: &Step, operand: Option<Use>) -> bool {
        let class = step.class;
        if !class.intersects(self.producer) || class.intersects(self.not_producer) {
            return false;
        }
        let meets = |other: Option<Use>| other.zip(operand).is_some_and(|(a, b)| a.overlaps(b));
        let wide = |other: &Use| other.role == Role::Data && other.count > 2;
        let buffer = class.contains(Class::VMEM);
        match self.part {
            Part::Writes => operand.is_some_and(|operand| step.writes.touches(operand)),
            Part::Result => meets(step.result().filter(|result| !result.is_scalar())),
            Part::Accumulator => meets(step.operand(Role::C)),
            Part::WideData => {
                let stores = class.contains(Class::FLAT) || buffer && !step.scalar_offset;
                stores && step.reads.iter().any(|other| wide(&other) && meets(Some(other)))
            }
            Part::WideDataWithOffset => {
                let stores = buffer && step.scalar_offset;
                stores && step.reads.iter().any(|other| wide(&other) && meets(Some(other)))
            }
            Part::HardwareRegister => (step.imm ^ consumer.imm) & 63 == 0,
            Part::TrapStatus => step.imm & 63 == TRAPSTS,
            Part::Memory => class.intersects(Class::VECTOR_MEMORY),
            Part::Any => true,
        }
    }
}

/// TRAPSTS among the hardware registers.
const TRAPSTS: i32 = 3;

// The numbers of the registers that rules name are the decoder's.
const _: () = assert!(Operand::VCC == 106 && Operand::EXEC == 126);
