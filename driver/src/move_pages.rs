// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MOVE: pages to a GPU's memory and back, on request and without any policy. For diagnosis and tests.

use crate::addr::{index, CpuSpan, CpuVa, VramOffset};
use crate::device_memory::DeviceMemory;
use crate::errno::{Errno, Error, Reason, Result};
use crate::os::{Arc, Vec};
use crate::process::Process;
use crate::residents::Residents;
use vkfd_uapi::vkfd as abi;

/// Pages that are offered places at a time.
const CHUNK_PAGES: u64 = 512;

impl Process {
    /// The MOVE call. What has moved when it fails has moved. EINVAL, EOPNOTSUPP, ESRCH, ENOMEM before anything has moved. O(pages).
    pub(crate) fn move_pages(&self, args: &mut abi::MoveArgs) -> Result {
        let device = self.kfd().device(args.gpu_id)?;
        let residents = device.residents(self.mm().migration())?;
        if args.size != 0 {
            let span = CpuSpan::new(CpuVa(args.start), args.size).ok_or(Error::new(Errno::EINVAL, Reason::Wraps))?;
            if !span.is_whole_pages() {
                return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
            }
            args.moved = match args.direction {
                abi::MOVE_TO_GPU => self.move_to_gpu(&residents, span)?,
                abi::MOVE_TO_SYSTEM => self.mm().migrate_to_system(span)?,
                _ => return Err(Errno::EINVAL.into()),
            };
        }
        args.released = residents.released().get();
        args.resident = residents.moved().get().saturating_sub(args.released);
        Ok(())
    }

    /// As much as there is VRAM for.
    fn move_to_gpu(&self, residents: &Arc<Residents>, span: CpuSpan) -> Result<u64> {
        let device = self.kfd().device(residents.gpu_id())?;
        let memory: Arc<dyn DeviceMemory> = residents.clone();
        let mut places: Vec<Option<VramOffset>> = Vec::with_capacity(index(span.pages().min(CHUNK_PAGES)))?;
        let (mut at, mut moved) = (span.start(), 0);
        while at < span.end() {
            let rest = CpuSpan::between(at, span.end());
            let count = rest.pages().min(CHUNK_PAGES);
            let blocks = match device.vram().alloc(count) {
                Err(error) if moved == 0 => return Err(error),
                Err(_) => break,
                Ok(blocks) => blocks,
            };
            places.clear();
            for block in blocks.iter() {
                for page in 0..block.pages {
                    places.push_reserved(Some(VramOffset(block.at.0 + page * crate::addr::PAGE)));
                }
            }
            let chunk = CpuSpan::between(at, CpuVa(at.0 + count * crate::addr::PAGE));
            let result = self.mm().migrate_to_device(chunk, &memory, &mut places);
            residents.moved().add(places.iter().filter(|place| place.is_none()).count() as u64);
            residents.free(&places);
            match result {
                Err(error) if moved == 0 => return Err(error),
                Err(_) => break,
                Ok(count) => moved += count,
            }
            at = chunk.end();
        }
        Ok(moved)
    }
}
