// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The wait counters: what counts on them, in which order it completes, and what waits for them.

use vkfd_isa::{Op, Target};

use crate::class::Class;
use crate::register::Use;
use crate::step::Step;

/// A counter of operations that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    Vector,
    Scalar,
    Export,
}

impl Counter {
    pub const fn name(self) -> &'static str {
        match self {
            Counter::Vector => "vmcnt",
            Counter::Scalar => "lgkmcnt",
            Counter::Export => "expcnt",
        }
    }

    /// The most that it counts. An operation beyond it is not issued, so that one with as many of
    /// its kind behind it has completed.
    fn most(self, target: Target) -> u8 {
        match self {
            Counter::Vector => 63,
            Counter::Scalar if target.is_gfx9() => 15,
            Counter::Scalar => 63,
            Counter::Export => 7,
        }
    }
}

/// Operations of one kind complete in their order, unless it is one that says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Buffers, GLOBAL, SCRATCH and images without a sampler; since gfx10 FLAT as well.
    Vector,
    /// Images with a sampler. They are counted in order with the others, and write in their own.
    Sampler,
    /// Rays: the same.
    Rays,
    /// FLAT before gfx10, which completes as LDS or as memory does.
    Flat,
    Lds,
    Gds,
    Message,
    /// Scalar memory, in any order.
    ScalarMemory,
    /// Reads of LDS to a vector register that count as exports.
    LdsDirect,
    /// GDS that has not read its registers yet.
    Locked,
    /// Whatever a caller has left behind.
    Caller,
}

impl Kind {
    /// Kinds that count down in one order have one number.
    fn order(self) -> Option<u8> {
        match self {
            Kind::Vector | Kind::Sampler | Kind::Rays => Some(0),
            Kind::Lds => Some(1),
            Kind::Gds => Some(2),
            Kind::Message => Some(3),
            Kind::LdsDirect => Some(4),
            Kind::Locked => Some(5),
            Kind::Flat | Kind::ScalarMemory | Kind::Caller => None,
        }
    }
}

/// An operation that an instruction starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub counter: Counter,
    pub kind: Kind,
    /// Whether it is the result that arrives late.
    pub result: bool,
}

/// Counts that an instruction waits for: at most so many operations are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Of vmcnt.
    pub vector: Option<u8>,
    /// Of lgkmcnt.
    pub scalar: Option<u8>,
    /// Of expcnt.
    pub export: Option<u8>,
    /// Of vscnt, on which no register waits.
    pub store: Option<u8>,
}

impl Wait {
    pub(crate) fn on(self, counter: Counter) -> Option<u8> {
        match counter {
            Counter::Vector => self.vector,
            Counter::Scalar => self.scalar,
            Counter::Export => self.export,
        }
    }
}

/// The counts that an `s_waitcnt` names. A field of ones names none.
pub(crate) fn waitcnt(target: Target, value: u32) -> Wait {
    // NEW TARGET: the counters of s_waitcnt
    let (vector, export, scalar) = match target {
        Target::Gfx1100 => (value >> 10 & 63, value & 7, value >> 4 & 63),
        Target::Gfx1030 => (value & 15 | value >> 10 & 48, value >> 4 & 7, value >> 8 & 63),
        Target::Gfx900 | Target::Gfx90a | Target::Gfx942 => {
            (value & 15 | value >> 10 & 48, value >> 4 & 7, value >> 8 & 15)
        }
    };
    let named = |count: u32, counter: Counter| {
        let count = count.to_le_bytes()[0];
        (count < counter.most(target)).then_some(count)
    };
    Wait {
        vector: named(vector, Counter::Vector),
        scalar: named(scalar, Counter::Scalar),
        export: named(export, Counter::Export),
        store: None,
    }
}

/// What a scalar instruction waits for.
pub(crate) fn counts(target: Target, op: Op, imm: i32) -> Wait {
    let all = Wait { vector: Some(0), scalar: Some(0), export: Some(0), store: Some(0) };
    let imm = u32::from_ne_bytes(imm.to_ne_bytes()) & 0xffff;
    let count = Some((imm & 63).to_le_bytes()[0]);
    // With a register, the count is not known: at most that of the immediate.
    match op {
        Op::SWaitcnt => waitcnt(target, imm),
        Op::SWaitcntVmcnt => Wait { vector: count, ..Wait::default() },
        Op::SWaitcntVscnt => Wait { store: count, ..Wait::default() },
        Op::SWaitcntLgkmcnt => Wait { scalar: count, ..Wait::default() },
        Op::SWaitcntExpcnt => Wait { export: Some((imm & 7).to_le_bytes()[0]), ..Wait::default() },
        Op::SWaitIdle => all,
        _ => Wait::default(),
    }
}

/// What an instruction waits for.
pub(crate) fn wait(target: Target, step: &Step) -> Wait {
    match step.op {
        // gfx11's interpolation has a count in its encoding.
        _ if step.class.contains(Class::INTERPOLATION) && step.words[0] >> 24 == 0xcd => {
            let count = (step.words[0] >> 8 & 7).to_le_bytes()[0];
            Wait { export: (count < 7).then_some(count), ..Wait::default() }
        }
        op => counts(target, op, step.imm),
    }
}

/// The operations that one instruction starts: at most two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Events {
    list: [Event; 2],
    count: usize,
}

impl Events {
    const NONE: Events =
        Events { list: [Event { counter: Counter::Vector, kind: Kind::Vector, result: false }; 2], count: 0 };

    fn and(mut self, event: Event) -> Events {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = event;
            self.count += 1;
        }
        self
    }
}

impl std::ops::Deref for Events {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        self.list.get(..self.count).unwrap_or(&[])
    }
}

/// The operations that an instruction starts. `split`: whether work-groups' waves may be on several
/// compute units, where FLAT does not reach LDS.
pub(crate) fn events(target: Target, step: &Step, split: bool) -> Events {
    let event = |counter, kind, result| Event { counter, kind, result };
    let one = |counter, kind, result| Events::NONE.and(event(counter, kind, result));
    let class = step.class;
    let newer = target.is_rdna();
    // Stores have a counter of their own since gfx10, on which no result depends.
    let stores = class.contains(Class::STORE) && step.result().is_none();
    if class.contains(Class::INVALIDATE) {
        Events::NONE
    } else if class.contains(Class::GENERIC) {
        let kind = if newer { Kind::Vector } else { Kind::Flat };
        let mut events = Events::NONE;
        if !(newer && stores) {
            let alone = split && kind == Kind::Flat;
            events = events.and(event(Counter::Vector, if alone { Kind::Vector } else { kind }, true));
        }
        if !split {
            events = events.and(event(Counter::Scalar, if newer { Kind::Lds } else { Kind::Flat }, true));
        }
        events
    } else if class.intersects(Class::VECTOR_MEMORY) {
        if newer && stores {
            return Events::NONE;
        }
        let kind = if class.contains(Class::SAMPLER) {
            Kind::Sampler
        } else if class.contains(Class::RAYS) {
            Kind::Rays
        } else {
            Kind::Vector
        };
        one(Counter::Vector, kind, true)
    } else if class.contains(Class::DS) {
        if class.contains(Class::GDS) {
            one(Counter::Scalar, Kind::Gds, true).and(event(Counter::Export, Kind::Locked, false))
        } else if step.op == Op::DsNop {
            Events::NONE
        } else {
            one(Counter::Scalar, Kind::Lds, true)
        }
    } else if class.contains(Class::SMEM) {
        one(Counter::Scalar, Kind::ScalarMemory, true)
    } else if class.contains(Class::MESSAGE) {
        one(Counter::Scalar, Kind::Message, true)
    } else if class.contains(Class::LDS_DIRECT) {
        one(Counter::Export, Kind::LdsDirect, true)
    } else if class.contains(Class::EXPORT) {
        one(Counter::Export, Kind::Locked, false)
    } else {
        Events::NONE
    }
}

/// A register that an operation under way will write, or has still to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub register: u16,
    pub counter: Counter,
    pub kind: Kind,
    /// Operations behind it that complete after it.
    pub behind: u8,
    /// The instruction that started it.
    pub by: u32,
}

impl Late {
    fn key(&self) -> (u16, Counter, Kind) {
        (self.register, self.counter, self.kind)
    }

    /// The highest count whose wait makes it right.
    pub fn count(&self) -> u8 {
        if self.kind.order().is_some() {
            self.behind
        } else {
            0
        }
    }

    /// Whether another result may be written before it has arrived: one of the same kind arrives
    /// after it. What FLAT brings from memory arrives before what later accesses bring from there.
    pub fn ordered_with(&self, event: &Event) -> bool {
        let same = self.kind == event.kind && self.kind.order().is_some();
        self.counter == event.counter && (same || self.kind == Kind::Flat && event.kind == Kind::Vector)
    }
}

/// The registers that are late, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    late: Vec<Late>,
    /// It keeps no more than it has room for.
    fixed: bool,
}

impl State {
    /// At a function's entry: its caller waits for nothing.
    pub fn entry() -> State {
        let mut late = Vec::new();
        for register in (0..=105).chain(256..768) {
            for counter in [Counter::Vector, Counter::Scalar] {
                if counter == Counter::Scalar || register >= 256 {
                    late.push(Late { register, counter, kind: Kind::Caller, behind: 0, by: 0 });
                }
            }
        }
        late.sort_by_key(Late::key);
        State { late, fixed: false }
    }

    /// One with room for so many registers, which never grows.
    pub fn fixed(room: usize) -> State {
        State { late: Vec::with_capacity(room), fixed: true }
    }

    pub fn is_empty(&self) -> bool {
        self.late.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Late> {
        self.late.iter()
    }

    /// Those that are late in a range.
    pub fn of(&self, registers: Use) -> &[Late] {
        let range = registers.registers();
        let first = self.late.partition_point(|late| late.register < range.start);
        let end = self.late.partition_point(|late| late.register < range.end);
        &self.late[first..end]
    }

    pub fn forget(&mut self, registers: Use) {
        if !self.of(registers).is_empty() {
            self.late.retain(|late| !registers.has(late.register));
        }
    }

    pub fn forget_kind(&mut self, kind: Kind) {
        self.late.retain(|late| late.kind != kind);
    }

    /// Those of one instruction.
    pub fn forget_by(&mut self, by: u32) {
        self.late.retain(|late| late.by != by);
    }

    pub fn clear(&mut self) {
        self.late.clear();
    }

    pub fn wait(&mut self, wait: Wait) {
        if wait != Wait::default() {
            self.late.retain(|late| wait.on(late.counter).is_none_or(|count| count > late.count()));
        }
    }

    /// An operation starts, of which `registers` are late.
    pub fn start(&mut self, target: Target, event: Event, registers: impl Iterator<Item = Use>, by: u32) {
        let order = event.kind.order();
        let most = event.counter.most(target);
        if order.is_some() {
            for late in &mut self.late {
                if late.counter == event.counter && late.kind.order() == order {
                    late.behind += 1;
                }
            }
            self.late.retain(|late| late.behind < most);
        }
        for registers in registers {
            for register in registers.registers() {
                self.enter(Late { register, counter: event.counter, kind: event.kind, behind: 0, by });
            }
        }
    }

    fn enter(&mut self, late: Late) {
        match self.late.binary_search_by_key(&late.key(), Late::key) {
            Ok(at) => self.late[at] = late,
            Err(_) if self.fixed && self.late.len() == self.late.capacity() => {}
            Err(at) => self.late.insert(at, late),
        }
    }

    /// What is late on one way or the other. Whether that is more than before.
    pub fn join(&mut self, other: &State) -> bool {
        let mut joined = Vec::with_capacity(self.late.len().max(other.late.len()));
        let mut more = false;
        let (mut mine, mut theirs) = (self.late.iter().peekable(), other.late.iter().peekable());
        loop {
            let late = match (mine.peek(), theirs.peek()) {
                (None, None) => break,
                (Some(a), Some(b)) if a.key() == b.key() => {
                    let late = if b.behind < a.behind { **b } else { **a };
                    more |= b.behind < a.behind;
                    mine.next();
                    theirs.next();
                    late
                }
                (Some(a), None) => {
                    let late = **a;
                    mine.next();
                    late
                }
                (Some(a), Some(b)) if a.key() < b.key() => {
                    let late = **a;
                    mine.next();
                    late
                }
                (_, Some(b)) => {
                    let late = **b;
                    more = true;
                    theirs.next();
                    late
                }
            };
            joined.push(late);
        }
        self.late = joined;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::{Role, VGPR};

    const VECTOR: Event = Event { counter: Counter::Vector, kind: Kind::Vector, result: true };

    fn one(register: u16) -> Use {
        Use { first: register, count: 1, role: Role::A }
    }

    fn started(events: &[(Event, u16)]) -> State {
        let mut state = State::default();
        for (by, (event, register)) in (0..).zip(events) {
            state.start(Target::Gfx900, *event, [one(*register)].into_iter(), by);
        }
        state
    }

    fn registers(state: &State) -> Vec<u16> {
        state.iter().map(|late| late.register).collect()
    }

    #[test]
    fn a_count_leaves_the_last_ones() {
        let mut state = started(&[(VECTOR, VGPR), (VECTOR, VGPR + 1), (VECTOR, VGPR + 2)]);
        state.wait(Wait { vector: Some(1), ..Wait::default() });
        assert_eq!(registers(&state), [VGPR + 2]);
        state.wait(Wait { vector: Some(0), ..Wait::default() });
        assert!(state.is_empty());
    }

    #[test]
    fn scalar_memory_has_no_order_and_lds_has_its_own() {
        let lds = Event { counter: Counter::Scalar, kind: Kind::Lds, result: true };
        let memory = Event { counter: Counter::Scalar, kind: Kind::ScalarMemory, result: true };
        let mut state = started(&[(lds, VGPR), (memory, 4), (lds, VGPR + 1)]);
        // Two of LDS, one of memory: with one left, the first of LDS is there.
        state.wait(Wait { scalar: Some(1), ..Wait::default() });
        assert_eq!(registers(&state), [4, VGPR + 1]);
        state.wait(Wait { scalar: Some(0), ..Wait::default() });
        assert!(state.is_empty());
    }

    #[test]
    fn a_full_counter_has_waited() {
        let lds = Event { counter: Counter::Scalar, kind: Kind::Lds, result: true };
        let state = started(&(0..16).map(|n| (lds, VGPR + n)).collect::<Vec<_>>());
        assert_eq!(registers(&state).first(), Some(&(VGPR + 1)));
    }

    #[test]
    fn a_join_keeps_what_is_late_on_either_way() {
        let mut one = started(&[(VECTOR, VGPR), (VECTOR, VGPR + 1)]);
        let other = started(&[(VECTOR, VGPR), (VECTOR, VGPR + 2), (VECTOR, VGPR + 3)]);
        assert!(one.join(&other));
        let counts: Vec<(u16, u8)> = one.iter().map(|late| (late.register - VGPR, late.behind)).collect();
        assert_eq!(counts, [(0, 1), (1, 0), (2, 1), (3, 0)]);
        assert!(!one.join(&other));
    }

    #[test]
    fn fields_of_ones_name_no_count() {
        assert_eq!(waitcnt(Target::Gfx900, 0xcf7f), Wait::default());
        assert_eq!(waitcnt(Target::Gfx900, 0xc07f), Wait { scalar: Some(0), ..Wait::default() });
        assert_eq!(waitcnt(Target::Gfx1100, 0x03f7), Wait { vector: Some(0), ..Wait::default() });
        assert_eq!(waitcnt(Target::Gfx1030, 0x3f70), Wait { vector: Some(0), ..Wait::default() });
    }
}
