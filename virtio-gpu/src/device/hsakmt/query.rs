// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Answers about the machine.

use std::time::{SystemTime, UNIX_EPOCH};

use vkfd_remote::protocol::hsakmt::query::{Query, BODY_BYTES, MAX_LIST};
use vkfd_remote::protocol::hsakmt::status;
use vkfd_remote::protocol::{put32, put64};

use super::super::space;
use super::{Answer, Hsakmt};

impl Hsakmt {
    pub(super) fn query(&mut self, query: Query) -> Answer {
        let topology = &self.shared.topology;
        // A list comes after the part that every answer has.
        let list = |node: u32, entries: &dyn Fn() -> Vec<u8>| match topology.gpu_id(node) {
            Some(_) => {
                let mut body = vec![0; BODY_BYTES];
                body.extend(entries());
                Answer::body(body)
            }
            None => Answer::status(status::INVALID_NODE),
        };
        let pair = |a: u64, b: u64| {
            let mut body = vec![0; 16];
            put64(&mut body, 0, a);
            put64(&mut body, 8, b);
            Answer::body(body)
        };
        let done = || Answer::status(status::SUCCESS);
        match query {
            Query::OpenKfd { .. } => pair(space::BASE, space::BYTES),
            Query::Version => {
                let (major, minor) = self.kfd.client().version();
                Answer::value(u64::from(minor) << 32 | u64::from(major))
            }
            Query::ReleaseSystem | Query::RuntimeEnable | Query::RuntimeDisable => done(),
            Query::System => Answer::body(topology.system()),
            Query::Node(node) => topology.node(node).map_or(Answer::status(status::INVALID_NODE), Answer::body),
            Query::Xnack => match self.kfd.client().xnack() {
                Ok(on) => Answer::value(on.into()),
                Err(error) => (&error).into(),
            },
            Query::SetXnack(on) => {
                self.kfd.client().set_xnack(on != 0).map_or_else(|error| (&error).into(), |()| done())
            }
            Query::Banks(node, count) => list(node, &|| topology.banks(node, count.min(MAX_LIST))),
            Query::Caches(node, count) => list(node, &|| topology.caches(node, count.min(MAX_LIST))),
            Query::Links(node, count) => list(node, &|| topology.links(node, count.min(MAX_LIST))),
            Query::Clocks(node) => self.clocks(node),
            Query::Pointer(address) => self.pointer(address),
            Query::GpuInfo => self.gpu_info(),
            Query::NanoTime => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Answer::value(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
            }
            Query::Capabilities => Answer::value(0),
            // Nothing is tiled here; of device handles and file numbers of the host a guest gets
            // none.
            Query::Tile(_) | Query::NotOffered(_) => Answer::status(status::NOT_SUPPORTED),
        }
    }

    fn clocks(&self, node: u32) -> Answer {
        let Some(gpu) = self.gpu(node) else { return Answer::status(status::INVALID_NODE) };
        match self.kfd.client().clocks(gpu) {
            Ok(clocks) => {
                let mut body = vec![0; 32];
                put64(&mut body, 0, clocks.gpu_clock_counter);
                put64(&mut body, 8, clocks.cpu_clock_counter);
                put64(&mut body, 16, clocks.system_clock_counter);
                put64(&mut body, 24, clocks.system_clock_freq);
                Answer::body(body)
            }
            Err(error) => (&error).into(),
        }
    }

    /// `HsaPointerInfo`, packed to 4 bytes: kind, node, flags, CPU address, GPU address, size.
    fn pointer(&self, address: u64) -> Answer {
        const ALLOCATED: u32 = 2;
        const REGISTERED: u32 = 1;
        let mut body = vec![0; 68];
        if let Some((start, bytes, registered)) = self.span(address) {
            put32(&mut body, 0, if registered { REGISTERED } else { ALLOCATED });
            put64(&mut body, 12, start);
            put64(&mut body, 20, start);
            put64(&mut body, 28, bytes);
        }
        Answer::body(body)
    }

    /// `amdgpu_gpu_info` of the first GPU, as far as runtimes ask for it.
    fn gpu_info(&self) -> Answer {
        let Some(gpu) = self.kfd.client().gpus().first() else { return Answer::status(status::NOT_SUPPORTED) };
        let node = self.shared.topology.node(gpu.node).unwrap_or_default();
        let word = |at| vkfd_remote::protocol::u32_at(&node, at).unwrap_or(0);
        let mut body = vec![0; BODY_BYTES];
        put32(&mut body, 0, word(84) >> 16);
        put64(&mut body, 24, u64::from(word(100)) * 1000);
        Answer::body(body)
    }
}
