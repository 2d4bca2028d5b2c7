// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fast engine has a world behind a reference, and the reference engine wants a type: a wrapper
//! that hands everything on.

use crate::exit::{Miss, Stop};
use crate::world::{Access, Detour, Span, World};
use vkfd_isa::Op;

/// A world behind a reference, as the reference engine wants it.
pub(super) struct Seam<'a>(pub(super) &'a mut dyn World);

impl World for Seam<'_> {
    fn enter(&mut self) -> Result<(), Stop> {
        self.0.enter()
    }

    fn leave(&mut self) {
        self.0.leave();
    }

    fn wanted(&self) -> bool {
        self.0.wanted()
    }

    fn opening(&self) -> Option<u64> {
        self.0.opening()
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        self.0.translate(va, access)
    }

    fn strict(&self) -> bool {
        self.0.strict()
    }

    fn is_host(&mut self, va: u64) -> bool {
        self.0.is_host(va)
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
        self.0.settle(miss)
    }

    fn interrupt(&mut self, event: u32) {
        self.0.interrupt(event);
    }

    fn clock(&self) -> u64 {
        self.0.clock()
    }

    fn cycles(&self) -> u64 {
        self.0.cycles()
    }

    fn retired(&mut self, instructions: u64) {
        self.0.retired(instructions);
    }

    fn wrote(&mut self) {
        self.0.wrote();
    }

    fn moved(&mut self, bytes: u64) {
        self.0.moved(bytes);
    }

    fn gws_init(&mut self, resource: u32, value: u32) {
        self.0.gws_init(resource, value);
    }

    fn gws_arrive(&mut self, resource: u32, value: u32) -> u64 {
        self.0.gws_arrive(resource, value)
    }

    fn gws_passed(&mut self, resource: u32, ticket: u64) -> bool {
        self.0.gws_passed(resource, ticket)
    }

    fn detour(&mut self, op: Op, why: Detour) {
        self.0.detour(op, why);
    }

    fn inexact(&mut self, op: Op) {
        self.0.inexact(op);
    }
}
