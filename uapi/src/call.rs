// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What tables of calls say of each: word, fields, arrays, and whether another process may make it.
//!
//! Mechanism: a row of the macro `calls!` is all that the tree knows of a call beside its work. The
//! row gives the constant, an assertion of the whole 32-bit word, an entry of `ALL`, and a variant
//! of `Call`. The driver's dispatch matches on `Call` without a default, so a row without an arm
//! does not compile. The trace prints [`Known::fields`], and [`Known::pointers`] with
//! [`Known::forward`] decide how a call goes to a driver in another process. A row must say one of
//! `forwarded`, `with_file` and `local "why"`. A field whose name ends in `_ptr` must be named in
//! the row, or the call must be local. Otherwise the host's driver would take a guest's address for
//! its own.

use super::ioctl::Command;
use super::pod::Field;

/// A call as its header defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The header's name without its prefix.
    pub name: &'static str,
    /// The word.
    pub command: Command,
    /// A minor version of the interface that certainly has it in this form.
    pub since: u32,
    /// The minor version from which the word is another one.
    pub until: Option<u32>,
    /// The argument's fields.
    pub fields: &'static [Field],
    /// The arrays that the argument points to.
    pub pointers: &'static [Pointer],
    /// Whether it can be made for another process.
    pub forward: Forward,
}

/// Whether a driver in another process may make the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// With its argument and its arrays.
    Yes,
    /// Only with a descriptor that is passed beside it.
    WithFile,
    /// Never, for this reason.
    No(&'static str),
}

/// Which way an array goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The call reads it.
    In,
    /// The call writes it.
    Out,
    /// The call does both.
    Both,
}

impl Way {
    /// Whether the array's contents go with a request.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Out
    }

    /// Whether the array's contents come with an answer.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::In
    }
}

/// How many elements an array has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// As many as the 32 bits at this offset say.
    Word(usize),
    /// As many as the 64 bits at this offset say.
    Long(usize),
    /// The 32 bits at this offset are a number of bits.
    Bits(usize),
}

/// A pointer to an array in a call's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Its offset in the argument.
    pub at: usize,
    /// The number of elements.
    pub count: Count,
    /// Bytes of an element.
    pub each: usize,
    /// Which way the array goes.
    pub way: Way,
}

/// Whether a row accounts for each field that is a pointer by its name.
pub(super) const fn names_its_pointers(fields: &[Field], pointers: &[Pointer], forward: Forward) -> bool {
    if let Forward::No(_) = forward {
        return true;
    }
    let mut field = 0;
    while field < fields.len() {
        let name = fields[field].name.as_bytes();
        let end = name.len();
        let is_pointer =
            end > 4 && name[end - 4] == b'_' && name[end - 3] == b'p' && name[end - 2] == b't' && name[end - 1] == b'r';
        let mut named = !is_pointer;
        let mut pointer = 0;
        while pointer < pointers.len() {
            named = named || pointers[pointer].at == fields[field].offset;
            pointer += 1;
        }
        if !named {
            return false;
        }
        field += 1;
    }
    true
}

/// Declares calls. The caller's scope needs `Command`, `Pod` and this module's types.
///
/// A row: documents, constant, name, encoding, argument, number, word, versions, and how the call
/// is forwarded. Arrays follow in brackets: way, pointer, element, and the field with their count.
macro_rules! calls {
    (type $type:ident; $(
        $(#[$doc:meta])*
        $constant:ident $name:literal = $encode:ident<$args:ty>($number:literal), $word:literal,
        since $since:literal $(until $until:literal)?,
        $forward:ident $($why:literal)?
        $([$($way:ident $pointer:ident: $each:ty, $count:ident $counter:ident);+])?;
    )+) => {
        $(
            $(#[$doc])*
            pub const $constant: Command = calls!(@encode $encode, $args, $type, $number);
            const _: () = assert!($constant.0 == $word, stringify!($constant));
            const _: () = {
                let known = Known::of($constant, ALL);
                assert!(
                    super::call::names_its_pointers(known.fields, known.pointers, known.forward),
                    concat!(stringify!($constant), ": a pointer is not named")
                );
            };
        )+

        /// Every call of the table, in the order of their numbers.
        pub const ALL: &[Known] = &[$(Known {
            name: $name,
            command: $constant,
            since: $since,
            until: calls!(@until $($until)?),
            fields: <$args as Pod>::FIELDS,
            pointers: &[$($(Pointer {
                at: ::core::mem::offset_of!($args, $pointer),
                count: Count::$count(::core::mem::offset_of!($args, $counter)),
                each: ::core::mem::size_of::<$each>(),
                way: Way::$way,
            }),+)?],
            forward: calls!(@forward $forward $($why)?),
        }),+];

        /// A call of the table.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Call {
            $($(#[$doc])* $constant,)+
        }

        impl Call {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$constant),+];
        }
    };
    (@encode io, $args:ty, $type:ident, $number:literal) => { Command::io($type, $number) };
    (@encode $encode:ident, $args:ty, $type:ident, $number:literal) => { Command::$encode::<$args>($type, $number) };
    (@until) => { None };
    (@until $until:literal) => { Some($until) };
    (@forward forwarded) => { Forward::Yes };
    (@forward with_file) => { Forward::WithFile };
    (@forward local $why:literal) => { Forward::No($why) };
}
pub(super) use calls;

impl Known {
    /// The entry of `command` in `all`. Panics (at compile time in a const) when there is none.
    #[must_use]
    pub const fn of(command: Command, all: &'static [Self]) -> &'static Self {
        let mut at = 0;
        while all[at].command.0 != command.0 {
            at += 1;
        }
        &all[at]
    }

    /// The entry of a call in `all`: of the whole word, or of the word without its size, because a
    /// caller may pass a longer or shorter argument. Linear.
    #[must_use]
    pub fn find(command: Command, all: &'static [Self]) -> Option<&'static Self> {
        let exact = all.iter().find(|known| known.command == command);
        exact.or_else(|| all.iter().find(|known| known.command.same_call(command)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_must_be_named_or_stay() {
        let fields = [Field { name: "ids_ptr", offset: 8, size: 8 }, Field { name: "count", offset: 0, size: 4 }];
        let pointer = Pointer { at: 8, count: Count::Word(0), each: 4, way: Way::In };
        assert!(!names_its_pointers(&fields, &[], Forward::Yes));
        assert!(!names_its_pointers(&fields, &[Pointer { at: 0, ..pointer }], Forward::WithFile));
        assert!(names_its_pointers(&fields, &[pointer], Forward::Yes));
        assert!(names_its_pointers(&fields, &[], Forward::No("it stays")));
        assert!(names_its_pointers(&fields[1..], &[], Forward::Yes));
    }
}
