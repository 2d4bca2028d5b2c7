// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rules: one row each.
//!
//! The facts are those of LLVM's GCNHazardRecognizer, which compilers rely on, and of the chapter
//! "Manually Inserted Wait States" in AMD's manuals.

use vkfd_isa::Target;

use super::distance::{Distance, Lack};
use super::walk::Found;
use super::{clause, order, Near, Setting};
use crate::class::Class;
use crate::graph::Graph;

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name in findings.
    pub id: &'static str,
    /// The hazard, as a noun with its circumstances.
    pub summary: &'static str,
    /// What compilers put between the two.
    pub remedy: &'static str,
    pub targets: &'static [Target],
    /// LLVM's name for it, or the page that has it.
    pub source: &'static str,
    pub(crate) test: Test,
}

/// How a rule is tested.
#[derive(Debug)]
pub(crate) enum Test {
    /// By a count of wait states.
    Distance(Distance),
    /// By the instructions that stand between the two.
    Order(fn(&Graph, usize) -> Option<Found>),
    /// The same, in waves of 64 lanes alone.
    Order64(fn(&Graph, usize) -> Option<Found>),
    /// The same, where instructions may be replayed alone.
    Replay(fn(&Graph, usize) -> Option<Found>),
}

impl Rule {
    pub(crate) fn applies(&self, setting: Setting) -> bool {
        let settings = match self.test {
            Test::Distance(_) | Test::Order(_) => true,
            Test::Order64(_) => setting.wave64,
            Test::Replay(_) => setting.xnack,
        };
        settings && self.targets.contains(&setting.target)
    }

    pub(crate) fn check(&'static self, graph: &Graph, at: usize, setting: Setting) -> Option<Near> {
        match &self.test {
            Test::Distance(distance) => {
                let Lack { by, needed, there, everywhere } = distance.check(graph, at, setting.target)?;
                Some(Near { rule: self, at, by, states: Some((needed, there)), everywhere })
            }
            Test::Order(check) | Test::Order64(check) | Test::Replay(check) => {
                // In a loop LLVM leaves out an instruction's hazard with its own last round.
                let Found { at: by, everywhere } = check(graph, at)?;
                Some(Near { rule: self, at, by, states: None, everywhere: everywhere && by != at })
            }
        }
    }

    /// The wait states that are needed, as text for a table.
    pub fn states(&self) -> String {
        match &self.test {
            Test::Distance(distance) => distance.states.text(),
            _ => String::from("-"),
        }
    }
}

use super::distance::{Operands::*, Part, States::*};
// NEW TARGET: its rules
use Target::{Gfx1030, Gfx1100, Gfx900, Gfx90a, Gfx942};

const GFX9: &[Target] = &[Gfx900, Gfx90a, Gfx942];
const CDNA: &[Target] = &[Gfx90a, Gfx942];
const NOP: &str = "s_nop";

/// A row whose test is a count.
const fn row(
    id: &'static str,
    summary: &'static str,
    targets: &'static [Target],
    source: &'static str,
    distance: Distance,
) -> Rule {
    Rule { id, summary, remedy: NOP, targets, source, test: Test::Distance(distance) }
}

const fn from(producer: Class, part: Part, consumer: Class, operands: super::distance::Operands) -> Distance {
    Distance {
        producer,
        not_producer: Class::empty(),
        part,
        consumer,
        not_consumer: Class::empty(),
        operands,
        ends: Class::empty(),
        states: Fixed(0),
    }
}

impl Distance {
    const fn states(mut self, states: super::distance::States) -> Distance {
        self.states = states;
        self
    }

    const fn producer_not(mut self, class: Class) -> Distance {
        self.not_producer = class;
        self
    }

    const fn consumer_not(mut self, class: Class) -> Distance {
        self.not_consumer = class;
        self
    }

    const fn ends(mut self, class: Class) -> Distance {
        self.ends = class;
        self
    }
}

const LANE: Class = Class::READ_LANE.union(Class::WRITE_LANE);
const READ: Class = Class::READ_LANE.union(Class::READ_FIRST_LANE);
const ANY_LANE: Class = READ.union(Class::WRITE_LANE);
const M0_READER: Class = Class::READS_M0;
const USER: Class = Class::VALU.union(Class::MEMORY_OR_EXPORT);
const DOT_USER: Class = USER;

/// All rules.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    row("hazards/sgpr-vmem", "a vector operation writes a scalar register that a memory access reads",
        GFX9, "checkVMEMHazards",
        from(Class::VALU, Part::Writes, Class::VECTOR_MEMORY, Bases).states(Fixed(5))),
    row("hazards/vgpr-dpp", "a vector operation writes a register that DPP reads",
        GFX9, "checkDPPHazards",
        from(Class::VALU, Part::Writes, Class::DPP, Vectors).states(Fixed(2))),
    row("hazards/exec-dpp", "a vector operation writes EXEC before DPP",
        GFX9, "checkDPPHazards",
        from(Class::VALU, Part::Writes, Class::DPP, Exec).states(Fixed(5))),
    row("hazards/vcc-div-fmas", "a vector operation writes VCC before v_div_fmas",
        GFX9, "checkDivFMasHazards",
        from(Class::VALU, Part::Writes, Class::DIV_FMAS, Vcc).states(Fixed(4))),
    row("hazards/sgpr-lane", "a vector operation writes the register that selects a lane",
        GFX9, "checkRWLaneHazards",
        from(Class::VALU, Part::Writes, LANE, Lane).states(Fixed(4))),
    row("hazards/setreg-getreg", "s_setreg before s_getreg of the same register",
        GFX9, "checkGetRegHazards",
        from(Class::SETREG, Part::HardwareRegister, Class::GETREG, HardwareRegister).states(Fixed(2))),
    row("hazards/setreg-setreg", "s_setreg before s_setreg of the same register",
        GFX9, "checkSetRegHazards",
        from(Class::SETREG, Part::HardwareRegister, Class::SETREG, HardwareRegister).states(Fixed(2))),
    row("hazards/trapsts-rfe", "s_setreg of TRAPSTS before s_rfe",
        GFX9, "checkRFEHazards",
        from(Class::SETREG, Part::TrapStatus, Class::RFE, Nothing).states(Fixed(1))),
    row("hazards/m0", "a scalar operation writes M0 before an instruction that reads it by itself",
        GFX9, "checkReadM0Hazards",
        from(Class::SALU, Part::Writes, M0_READER, M0).states(Fixed(1))),
    row("hazards/wide-store", "a vector operation overwrites data of more than 64 bits that a store still reads",
        GFX9, "createsVALUHazard",
        from(Class::STORE, Part::WideData, Class::VALU, Results).states(Cdna3(2, 1))),
    row("hazards/wide-store-offset", "a vector operation overwrites data of more than 64 bits that a store with a scalar offset still reads",
        &[Gfx942], "createsVALUHazard of newer versions",
        from(Class::STORE, Part::WideDataWithOffset, Class::VALU, Results).states(Fixed(1))),
    row("hazards/sgpr-valu", "a vector operation writes a scalar register that the next one reads",
        &[Gfx942], "checkVALUHazards",
        from(Class::VALU, Part::Writes, Class::VALU, Scalars).states(Fixed(2))),
    row("hazards/vgpr-readlane", "a vector operation writes a register that v_readlane or v_readfirstlane reads",
        &[Gfx942], "checkVALUHazards",
        from(Class::VALU, Part::Writes, READ, First).states(Fixed(1))),
    row("hazards/exec-lane", "a vector operation writes EXEC before v_readlane, v_readfirstlane or v_writelane",
        &[Gfx942], "checkVALUHazards",
        from(Class::VALU, Part::Writes, ANY_LANE, Exec).states(Fixed(4))),
    row("hazards/trans", "a transcendental operation's result is read by another kind of operation",
        &[Gfx942], "checkVALUHazards",
        from(Class::TRANS, Part::Result, Class::VALU, Explicit).consumer_not(Class::TRANS).states(Fixed(1))),
    row("hazards/part", "a result that SDWA or op_sel puts into a part of a register is read",
        &[Gfx942], "checkVALUHazards",
        from(Class::PART, Part::Result, Class::VALU, Explicit).states(Fixed(1))),
    row("hazards/exec-mfma", "a vector operation writes EXEC before a matrix operation",
        CDNA, "checkMAIHazards90A",
        from(Class::VALU, Part::Writes, Class::MFMA, Exec).producer_not(Class::MFMA).states(Fixed(4))),
    row("hazards/vgpr-mfma", "a vector operation writes a register that a matrix operation reads",
        CDNA, "checkMAIHazards90A",
        from(Class::VALU, Part::Writes, Class::MFMA, Explicit)
            .producer_not(Class::MFMA.union(Class::DOT)).states(Fixed(2))),
    row("hazards/mfma-c", "a matrix operation's result is in part what another adds to",
        CDNA, "checkMAIHazards90A",
        from(Class::MFMA, Part::Result, Class::MFMA, Accumulator).states(MatrixC)),
    row("hazards/mfma-ab", "a matrix operation's result is a factor of another",
        CDNA, "checkMAIHazards90A",
        from(Class::MFMA, Part::Result, Class::MFMA, Factors).states(MatrixAb)),
    row("hazards/mfma-read", "a matrix operation's result is read by another kind of instruction",
        CDNA, "checkMAIVALUHazards",
        from(Class::MFMA, Part::Result, USER, Explicit).consumer_not(Class::MFMA).states(MatrixRead)),
    row("hazards/mfma-overwrite", "a matrix operation's result is overwritten by another kind of instruction",
        CDNA, "checkMAIVALUHazards",
        from(Class::MFMA, Part::Result, USER, Results).consumer_not(Class::MFMA).states(MatrixOverwrite)),
    row("hazards/mfma-c-overwrite", "another kind of instruction overwrites what a matrix operation adds to",
        CDNA, "checkMAIVALUHazards",
        from(Class::XDL, Part::Accumulator, USER, Results).consumer_not(Class::MFMA).states(MatrixCOverwrite)),
    row("hazards/dgemm-fma", "a matrix operation of double precision before v_fma_f64 or v_fmac_f64",
        CDNA, "checkMAIVALUHazards",
        from(Class::DGEMM, Part::Any, Class::FMA64, Nothing).states(Fixed(2))),
    row("hazards/dot-read", "a dot product's result is read by another operation, or as a factor",
        CDNA, "checkMAIVALUHazards",
        from(Class::DOT, Part::Result, DOT_USER, Explicit).consumer_not(Class::MFMA).states(DotRead)),
    row("hazards/dot-overwrite", "a dot product's result is overwritten by another operation",
        CDNA, "checkMAIVALUHazards",
        from(Class::DOT, Part::Result, DOT_USER, Results).consumer_not(Class::MFMA).states(DotOverwrite)),
    Rule { id: "hazards/dgemm-between", remedy: "two wait states are needed between the first and the last",
        summary: "a matrix operation of double precision stands between a write and an access that reads it",
        targets: &[Gfx90a], source: "checkMAIVALUHazards", test: Test::Order(order::dgemm_between) },
    Rule { id: "hazards/xnack-clause", remedy: "an instruction of another kind must stand between them",
        summary: "memory instructions in a row, which may be replayed, overwrite what one of them reads",
        targets: GFX9, source: "checkSoftClauseHazards", test: Test::Replay(clause::overlaps) },
    row("hazards/denorm-mode", "an atomic operation on floating-point numbers before s_denorm_mode",
        &[Gfx1030], "checkFPAtomicToDenormModeHazard",
        from(Class::FLOAT_ATOMIC, Part::Memory, Class::DENORM_MODE, Nothing)
            .ends(Class::VALU.union(Class::WAIT)).states(Fixed(3))),
    Rule { id: "hazards/cmpx-permlane", remedy: "a vector operation must stand between them",
        summary: "v_cmpx writes EXEC before v_permlane",
        targets: &[Gfx1100], source: "fixVcmpxPermlaneHazards", test: Test::Order(order::cmpx_permlane) },
    Rule { id: "hazards/lds-direct-valu", remedy: "its wait_vdst field must name a smaller count",
        summary: "lds_direct_load writes a register that a vector operation may still use",
        targets: &[Gfx1100], source: "fixLdsDirectVALUHazard", test: Test::Order(order::lds_direct_valu) },
    Rule { id: "hazards/lds-direct-vmem", remedy: "`s_waitcnt_depctr depctr_vm_vsrc(0)` must stand between them",
        summary: "lds_direct_load writes a register that a memory access may still use",
        targets: &[Gfx1100], source: "fixLdsDirectVMEMHazard", test: Test::Order(order::lds_direct_vmem) },
    Rule { id: "hazards/partial-forwarding", remedy: "`s_waitcnt_depctr depctr_va_vdst(0)` must stand before the use",
        summary: "sources from before and from behind a write of EXEC meet",
        targets: &[Gfx1100], source: "fixVALUPartialForwardingHazard", test: Test::Order64(order::partial_forwarding) },
    Rule { id: "hazards/trans-use", remedy: "`s_waitcnt_depctr depctr_va_vdst(0)` must stand before the use",
        summary: "a transcendental operation's result is read soon after it",
        targets: &[Gfx1100], source: "fixVALUTransUseHazard", test: Test::Order(order::trans_use) },
    Rule { id: "hazards/wmma", remedy: "a vector operation, such as v_nop, must stand between them",
        summary: "a matrix operation's result is a factor of the next",
        targets: &[Gfx1100], source: "fixWMMAHazards", test: Test::Order(order::wmma) },
    Rule { id: "hazards/mask-write", remedy: "`s_waitcnt_depctr depctr_sa_sdst(0)` must stand between write and read",
        summary: "a scalar operation overwrites a lane mask that a vector operation read, and another reads it",
        targets: &[Gfx1100], source: "fixVALUMaskWriteHazard", test: Test::Order64(order::mask_write) },
];
