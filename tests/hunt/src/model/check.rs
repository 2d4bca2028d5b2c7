// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compares the machine with the model, page by page and number by number.

use std::collections::HashSet;

use vkfd_driver::base::addr::PAGE;
use vkfd_uapi::vkfd::{RANGE_DENIED, RANGE_GONE, RANGE_INVALID, RANGE_VALID};

use super::run::{ensure, Kind, State, Verdict, World, WINDOW};
use vkfd_sim::{Seen, SimGpu};

/// What a failed call must leave as it was.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Fingerprint {
    objects: Vec<(u64, u32, u64)>,
    notifiers: usize,
    charged: u64,
    vram: Vec<u64>,
    pages: Vec<Vec<(u64, Seen)>>,
}

impl World {
    fn window_pages(&self) -> u64 {
        let end = self.objects.iter().map(|o| o.page + o.pages).max().unwrap_or(0);
        end.max(self.shape.slots * self.shape.slot_pages) + 1
    }

    fn vram_used(&self) -> Vec<u64> {
        self.rig.process.kfd().devices().iter().map(|d| d.vram().used()).collect()
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let seen = |gpu: &SimGpu| {
            let all = (0..self.window_pages()).map(|page| (page, gpu.access(WINDOW + page * PAGE)));
            all.filter(|(_, seen)| *seen != Seen::Nothing).collect()
        };
        Fingerprint {
            objects: self.bos().iter().map(|bo| (bo.handle, bo.mapped_gpus, bo.size)).collect(),
            notifiers: self.rig.mm.watch_count(),
            charged: self.rig.process.kfd().limit().used(),
            vram: self.vram_used(),
            pages: self.rig.gpus.iter().map(|gpu| seen(gpu)).collect(),
        }
    }

    pub(super) fn check(&self) -> Verdict {
        self.check_numbers()?;
        self.check_ranges()?;
        for gpu in 0..self.rig.gpus.len() {
            self.check_pages(gpu).map_err(|why| format!("GPU {gpu}: {why}"))?;
        }
        Ok(())
    }

    fn check_numbers(&self) -> Verdict {
        let info = self.rig.info();
        let bytes = |wanted: fn(&Kind) -> bool| -> u64 {
            self.objects.iter().filter(|o| wanted(&o.kind)).map(|o| o.pages * PAGE).sum()
        };
        let userptr = bytes(|k| matches!(k, Kind::Userptr { .. }));
        let (vram, gtt) = (bytes(|k| matches!(k, Kind::Vram)), bytes(|k| matches!(k, Kind::Gtt)));
        let ranges: usize = self
            .objects
            .iter()
            .map(|o| match &o.kind {
                Kind::Userptr { ranges, .. } => ranges.len(),
                _ => 0,
            })
            .sum();
        let notifiers = self.rig.mm.watch_count() as u64;
        for (what, is, wanted) in [
            ("objects", info.bos, self.objects.len() as u64),
            ("ranges", info.userptr_ranges, ranges as u64),
            ("userptr bytes", info.userptr_bytes, userptr),
            ("GTT bytes", info.gtt_bytes, gtt),
            ("VRAM bytes", info.vram_bytes, vram),
            ("notifiers", info.notifiers, notifiers),
            ("bytes charged", self.rig.process.kfd().limit().used(), userptr + gtt),
            ("VRAM in use", self.vram_used().iter().sum(), vram + info.page_table_bytes),
            ("evictions", info.evictions, info.restores),
            ("XNACK", info.xnack.into(), self.xnack.into()),
        ] {
            ensure!(is == wanted, "{what}: {is}, not {wanted}");
        }
        Ok(())
    }

    /// The driver's own state of each mapped range.
    fn check_ranges(&self) -> Verdict {
        for object in self.objects.iter().filter(|o| o.is_mapped()) {
            let Kind::Userptr { ranges, .. } = &object.kind else { continue };
            let told = self.ranges(object.handle).map_err(|e| format!("{e:?}"))?;
            ensure!(told.len() == ranges.len(), "{} ranges, not {}", told.len(), ranges.len());
            let mut gpu_va = WINDOW + object.page * PAGE;
            for (i, (told, range)) in told.iter().zip(ranges).enumerate() {
                let wanted = match range.state {
                    State::Valid => RANGE_VALID,
                    State::Invalid => RANGE_INVALID,
                    State::Gone => RANGE_GONE,
                    State::Denied => RANGE_DENIED,
                };
                let place = (told.cpu_start, told.size, told.gpu_va);
                ensure!(place == (range.first * PAGE, range.pages * PAGE, gpu_va), "range {i} is {told:x?}");
                ensure!(told.state == wanted, "range {i} of {:#x} is {}, not {range:?}", object.handle, told.state);
                gpu_va += range.pages * PAGE;
            }
        }
        Ok(())
    }

    /// Every page of the window, through the TLB, which keeps what it sees for the next time.
    fn check_pages(&self, gpu: usize) -> Verdict {
        let device = &self.rig.gpus[gpu];
        let mut wanted = vec![Wanted::Nothing; usize::try_from(self.window_pages()).unwrap_or(0)];
        for object in self.objects.iter().filter(|o| o.mapped[gpu]) {
            let start = usize::try_from(object.page).unwrap_or(0);
            let mut slots = wanted[start..].iter_mut();
            match &object.kind {
                Kind::Userptr { ranges, writable } => {
                    for range in ranges {
                        for page in range.first..range.first + range.pages {
                            let slot = slots.next().ok_or("a page outside of the window")?;
                            if range.state == State::Valid {
                                let frame = self.rig.mm.frame(page).ok_or_else(|| format!("no page {page:#x}"))?;
                                *slot = Wanted::Frame(frame, *writable);
                            }
                        }
                    }
                }
                Kind::Vram | Kind::Gtt => {
                    let system = matches!(object.kind, Kind::Gtt);
                    slots
                        .take(usize::try_from(object.pages).unwrap_or(0))
                        .for_each(|slot| *slot = Wanted::Own { system });
                }
            }
        }
        let mut own = HashSet::new();
        for (page, wanted) in (0..).zip(wanted) {
            let seen = device.access(WINDOW + page * PAGE);
            let fits = match (seen, wanted) {
                (Seen::Nothing, Wanted::Nothing) => true,
                (Seen::Memory { frame, system: true, writable }, Wanted::Frame(f, w)) => (frame, writable) == (f, w),
                (Seen::Memory { frame, system, .. }, Wanted::Own { system: s }) => system == s && own.insert(frame),
                _ => false,
            };
            let stale = match seen {
                Seen::Memory { frame, system: true, .. } if !fits && !self.rig.mm.is_live(frame) => " (a dead frame)",
                _ => "",
            };
            ensure!(fits, "page {page} of the window: {seen:?}{stale}, not {wanted:?}");
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Nothing,
    Frame(u64, bool),
    /// Memory of the driver, a page that no other address has.
    Own {
        system: bool,
    },
}
