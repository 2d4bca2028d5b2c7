// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The generated tables: facts from LLVM 19.1.7's description of the AMDGPU target (Apache-2.0 WITH
//! LLVM-exception).

pub(crate) mod records;
pub(crate) mod shapes;
