// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that a client has a handle of: buffer objects, DRM's objects, and files of both.

pub mod bo;
pub mod dmabuf;
pub mod files;
pub mod gem_object;
pub mod metadata;
