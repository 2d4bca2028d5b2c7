// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that move between simulated system memory and VRAM, contents and all.

use super::{turn, Change, CpuPage, SimMm};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuSpan, VramOffset, PAGE};
use vkfd_driver::seams::device_memory::{DeviceMemory, Kind, Migration};

/// Where a GPU's VRAM is in the fabric.
pub fn fabric_frame(gpu_id: u32, at: VramOffset) -> u64 {
    (u64::from(gpu_id) << 18) + at.0 / PAGE
}

impl SimMm {
    pub(super) fn migration(&self) -> Migration {
        let kind = *self.kind.lock().unwrap();
        Migration { coherent: kind == Some(Kind::Coherent), private: kind == Some(Kind::Private) }
    }

    /// Pages are nobody's any more: what they held is lost, and VRAM goes back.
    pub(super) fn let_go(&self, pages: Vec<CpuPage>) {
        for page in pages {
            self.data.lock().unwrap().remove(&page.frame);
            if let Some((device, at)) = page.device {
                device.released(at, 1);
            }
        }
    }

    pub(super) fn move_in(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> u64 {
        let first = span.start().0 / PAGE;
        let mut moved = 0;
        let hook = self.before_move.lock().unwrap().clone();
        // Notified of, as Linux does before it looks what there is to move.
        if let Some(hook) = hook {
            self.notify(first, span.pages(), true);
            hook(self, &[span]);
        }
        self.change(Change::Place, first, span.pages(), || {
            for (number, place) in (first..).zip(places.iter_mut()) {
                let movable = {
                    let pages = self.pages.lock().unwrap();
                    pages.get(&number).is_some_and(|page| page.device.is_none())
                };
                if !movable || self.pinned.lock().unwrap().contains(&number) {
                    continue;
                }
                let Some(at) = place.take() else { continue };
                self.put(number, fabric_frame(device.gpu_id(), at), Some((device.clone(), at)));
                moved += 1;
            }
        });
        self.moves.fetch_add(moved, Ordering::SeqCst);
        moved
    }

    pub(super) fn move_out(&self, span: CpuSpan) -> u64 {
        let first = span.start().0 / PAGE;
        let mut left = Vec::new();
        self.change(Change::Place, first, span.pages(), || {
            // Not each address: the span may be as long as a client likes.
            let pages = self.pages.lock().unwrap();
            let here = pages.range(first..first + span.pages());
            let on_device: Vec<u64> =
                here.filter(|(_, page)| page.device.is_some()).map(|(number, _)| *number).collect();
            drop(pages);
            for number in on_device {
                if !self.pinned.lock().unwrap().contains(&number) {
                    let frame = 0x1000 + self.next.fetch_add(1, Ordering::SeqCst);
                    left.extend(self.put(number, frame, None));
                }
            }
        });
        turn();
        let moved = left.len() as u64;
        self.moves.fetch_add(moved, Ordering::SeqCst);
        for (device, at) in left {
            device.released(at, 1);
        }
        moved
    }

    /// Pages at `places`, whichever owner has them. What is on its way there stays.
    pub(super) fn move_out_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> u64 {
        let here = |page: &CpuPage| {
            let at = page.device.as_ref().filter(|(other, _)| other.gpu_id() == device.gpu_id());
            at.is_some_and(|(_, at)| places.contains(at))
        };
        let own: Vec<u64> = self.pages.lock().unwrap().iter().filter(|(_, p)| here(p)).map(|(n, _)| *n).collect();
        let mut moved = 0;
        for number in own {
            let start = vkfd_driver::base::addr::CpuVa(number * PAGE);
            moved += self.move_out(CpuSpan::new(start, PAGE).unwrap());
        }
        let mut left = Vec::new();
        for page in self.childs.lock().unwrap().values_mut().filter(|page| here(page)) {
            let frame = 0x1000 + self.next.fetch_add(1, Ordering::SeqCst);
            let mut data = self.data.lock().unwrap();
            if let Some(value) = data.remove(&page.frame) {
                data.insert(frame, value);
            }
            page.frame = frame;
            left.extend(page.device.take());
        }
        self.moves.fetch_add(left.len() as u64, Ordering::SeqCst);
        moved += left.len() as u64;
        for (device, at) in left {
            device.released(at, 1);
        }
        moved
    }

    /// What a forked child reads of a page that only it has.
    pub fn child_reads(&self, page: u64) -> u64 {
        let frame = self.childs.lock().unwrap()[&page].frame;
        self.data.lock().unwrap().get(&frame).copied().unwrap_or(0)
    }

    /// The child unmaps what it has.
    pub fn end_child(&self) {
        let pages = std::mem::take(&mut *self.childs.lock().unwrap());
        self.let_go(pages.into_values().collect());
    }

    /// A page and what it holds are at another frame from now on. Where it was, if that was a
    /// GPU's.
    fn put(
        &self,
        number: u64,
        frame: u64,
        device: Option<(Arc<dyn DeviceMemory>, VramOffset)>,
    ) -> Option<(Arc<dyn DeviceMemory>, VramOffset)> {
        let mut pages = self.pages.lock().unwrap();
        let page = pages.get_mut(&number)?;
        let mut data = self.data.lock().unwrap();
        if let Some(value) = data.remove(&page.frame) {
            data.insert(frame, value);
        }
        page.frame = frame;
        std::mem::replace(&mut page.device, device)
    }

    /// Whose memory a page is in: a `gpu_id`, or 0 for system memory.
    pub fn location(&self, page: u64) -> Option<u32> {
        let pages = self.pages.lock().unwrap();
        pages.get(&page).map(|page| page.device.as_ref().map_or(0, |(device, _)| device.gpu_id()))
    }

    /// The CPU touches a page: of private memory it comes back.
    fn touch(&self, page: u64) -> u64 {
        let private = {
            let pages = self.pages.lock().unwrap();
            pages[&page].device.clone().filter(|(device, _)| !device.coherent())
        };
        if let Some((device, at)) = private {
            device.came_back(at, 1);
            let start = vkfd_driver::base::addr::CpuVa(page * PAGE);
            self.move_out(CpuSpan::new(start, PAGE).unwrap());
        }
        self.frame(page).unwrap()
    }

    pub fn cpu_write(&self, page: u64, value: u64) {
        let frame = self.touch(page);
        self.data.lock().unwrap().insert(frame, value);
    }

    pub fn cpu_read(&self, page: u64) -> u64 {
        let frame = self.touch(page);
        self.data.lock().unwrap().get(&frame).copied().unwrap_or(0)
    }

    /// How many pages are in VRAM.
    pub fn device_pages(&self) -> usize {
        self.pages.lock().unwrap().values().filter(|page| page.device.is_some()).count()
    }
}
