// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registers in one numbering, and the operands of an instruction as ranges of them.
//!
//! Scalar registers have the decoder's numbers (0 to 127), vector registers follow from 256, and
//! accumulation registers from 512.

use std::fmt;

use vkfd_isa::Operand;

/// A register's number.
pub(crate) type Register = u16;

pub(crate) const VGPR: Register = 256;
pub(crate) const AGPR: Register = 512;
pub(crate) const VCC: Register = Operand::VCC as Register;
pub(crate) const M0: Register = Operand::M0 as Register;
pub(crate) const EXEC: Register = Operand::EXEC as Register;

/// The place that an operand has in its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Destination,
    /// The flag or scale that goes with the result.
    Flag,
    /// Sources: the first, the second, the third.
    A,
    B,
    C,
    /// The index of a sparse matrix.
    Index,
    /// The destination, of which a part stays.
    Old,
    Address,
    Data,
    /// A scalar base, a descriptor, a scalar offset.
    Base,
    /// No encoding names it.
    Implicit,
}

/// Registers that an operand names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub first: Register,
    pub count: Register,
    pub role: Role,
}

impl Use {
    /// The registers of an operand, if it is some. NULL is none.
    pub fn new(operand: Operand, count: u8, role: Role) -> Option<Use> {
        let first = match operand {
            Operand::Scalar(Operand::NULL) => return None,
            Operand::Scalar(number) => Register::from(number),
            Operand::Vgpr(number) => VGPR + number,
            Operand::Agpr(number) => AGPR + number,
            _ => return None,
        };
        let bank = if first < VGPR { VGPR } else { (first / VGPR + 1) * VGPR };
        Some(Use { first, count: Register::from(count.max(1)).min(bank - first), role })
    }

    pub fn registers(self) -> std::ops::Range<Register> {
        self.first..self.first + self.count
    }

    pub fn overlaps(self, other: Use) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }

    pub fn has(self, register: Register) -> bool {
        self.registers().contains(&register)
    }

    pub fn is_scalar(self) -> bool {
        self.first < VGPR
    }
}

/// A list of operands, of which an instruction has few.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    list: [Use; 10],
    count: u8,
}

impl Uses {
    pub const NONE: Uses = Uses { list: [Use { first: 0, count: 0, role: Role::Implicit }; 10], count: 0 };

    pub fn add(&mut self, operand: Option<Use>) {
        let Some(operand) = operand else { return };
        if let Some(place) = self.list.get_mut(usize::from(self.count)) {
            *place = operand;
            self.count += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Use> + '_ {
        self.list[..usize::from(self.count)].iter().copied()
    }

    pub fn touches(&self, registers: Use) -> bool {
        self.iter().any(|other| other.overlaps(registers))
    }

    pub fn has(&self, register: Register) -> bool {
        self.iter().any(|other| other.has(register))
    }
}

/// A register's name.
pub(crate) struct Name(pub Register);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            VCC => f.write_str("vcc_lo"),
            107 => f.write_str("vcc_hi"),
            M0 => f.write_str("m0"),
            EXEC => f.write_str("exec_lo"),
            127 => f.write_str("exec_hi"),
            n @ AGPR.. => write!(f, "a{}", n - AGPR),
            n @ VGPR.. => write!(f, "v{}", n - VGPR),
            n => write!(f, "s{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_end_with_their_bank() {
        let quad = Use::new(Operand::Vgpr(4), 4, Role::A).expect("registers");
        assert!(quad.overlaps(Use::new(Operand::Vgpr(7), 1, Role::A).expect("one")));
        assert!(!quad.overlaps(Use::new(Operand::Vgpr(8), 1, Role::A).expect("one")));
        assert!(!quad.overlaps(Use::new(Operand::Agpr(4), 4, Role::A).expect("others")));
        assert_eq!(Use::new(Operand::Vgpr(254), 4, Role::A).expect("some").registers(), 510..512);
        assert_eq!(Use::new(Operand::Scalar(Operand::NULL), 2, Role::A), None);
    }

    #[test]
    fn names_are_the_assemblers() {
        let names: Vec<String> = [3, VCC, M0, EXEC, VGPR + 7, AGPR + 9].map(|n| Name(n).to_string()).to_vec();
        assert_eq!(names, ["s3", "vcc_lo", "m0", "exec_lo", "v7", "a9"]);
    }
}
