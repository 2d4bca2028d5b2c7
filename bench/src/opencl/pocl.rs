// SPDX-License-Identifier: GPL-2.0 OR MIT
//! PoCL, by the system's OpenCL loader, which is opened when it is asked for: vkfd needs neither.

use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::work::{Case, IN_BYTES, OUT_BYTES};

type Handle = *mut c_void;

/// As OpenCL's headers have them.
const PLATFORM_NAME: u32 = 0x0902;
const DEVICE_TYPE_CPU: u64 = 1 << 1;
const READ_WRITE: u64 = 1;

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The loader's functions.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn of(library: Handle) -> Option<Functions> {
                Some(Functions {
                    $($name: {
                        // SAFETY: an open library, and a name that ends with a zero.
                        let symbol = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast()) };
                        if symbol.is_null() {
                            return None;
                        }
                        // SAFETY: OpenCL's function of this name has this type.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> $result>(symbol) }
                    },)*
                })
            }
        }
    };
}

functions! {
    platforms: "clGetPlatformIDs" (u32, *mut Handle, *mut u32) -> i32;
    platform_info: "clGetPlatformInfo" (Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    devices: "clGetDeviceIDs" (Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    context: "clCreateContext" (*const isize, u32, *const Handle, Handle, Handle, *mut i32) -> Handle;
    queue: "clCreateCommandQueue" (Handle, Handle, u64, *mut i32) -> Handle;
    program: "clCreateProgramWithSource" (Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    build: "clBuildProgram" (Handle, u32, *const Handle, *const c_char, Handle, Handle) -> i32;
    buffer: "clCreateBuffer" (Handle, u64, usize, Handle, *mut i32) -> Handle;
    kernel: "clCreateKernel" (Handle, *const c_char, *mut i32) -> Handle;
    argument: "clSetKernelArg" (Handle, u32, usize, *const c_void) -> i32;
    launch: "clEnqueueNDRangeKernel" (Handle, Handle, u32, *const usize, *const usize, *const usize, u32, Handle, Handle) -> i32;
    finish: "clFinish" (Handle) -> i32;
    read: "clEnqueueReadBuffer" (Handle, Handle, u32, usize, usize, *mut c_void, u32, Handle, Handle) -> i32;
    write: "clEnqueueWriteBuffer" (Handle, Handle, u32, usize, usize, *const c_void, u32, Handle, Handle) -> i32;
}

/// A program on PoCL's processor device. It lives until the process ends.
pub struct Pocl {
    functions: Functions,
    queue: Handle,
    program: Handle,
    from: Handle,
    to: Handle,
}

fn done(what: &str, status: i32) -> Result<()> {
    ensure!(status == 0, "PoCL: {what}: error {status}");
    Ok(())
}

impl Pocl {
    /// PoCL with a program; why not, if there is none.
    pub fn new(source: &str) -> Result<Pocl, String> {
        let name = c"libOpenCL.so.1";
        // SAFETY: a name that ends with a zero; the library's own initialization.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err("no OpenCL loader is installed (Debian: pocl-opencl-icd ocl-icd-libopencl1)".to_owned());
        }
        let functions = Functions::of(library).ok_or("the OpenCL loader lacks functions")?;
        Pocl::start(functions, source).map_err(|error| format!("{error:#}"))
    }

    fn start(functions: Functions, source: &str) -> Result<Pocl> {
        let mut platforms = [null_mut(); 16];
        let mut count = 0;
        // SAFETY: room for as many platforms.
        let status = unsafe { (functions.platforms)(16, platforms.as_mut_ptr(), &raw mut count) };
        ensure!(status == 0, "no OpenCL platform is installed (Debian: pocl-opencl-icd)");
        let is_pocl = |platform: &&Handle| {
            let mut name = [0u8; 128];
            // SAFETY: a platform, and room for its name.
            let status = unsafe {
                (functions.platform_info)(**platform, PLATFORM_NAME, 127, name.as_mut_ptr().cast(), null_mut())
            };
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            status == 0 && name.to_string_lossy().contains("Portable Computing Language")
        };
        let platform = platforms.iter().take(count as usize).find(is_pocl);
        let platform = *platform.context("PoCL is not installed (Debian: pocl-opencl-icd)")?;
        let mut device = null_mut();
        // SAFETY: room for one device.
        done("devices", unsafe { (functions.devices)(platform, DEVICE_TYPE_CPU, 1, &raw mut device, null_mut()) })?;
        let mut status = 0;
        // SAFETY: the device; no properties, no function to be called.
        let context =
            unsafe { (functions.context)(null(), 1, &raw const device, null_mut(), null_mut(), &raw mut status) };
        done("context", status)?;
        // SAFETY: the context and its device.
        let queue = unsafe { (functions.queue)(context, device, 0, &raw mut status) };
        done("queue", status)?;
        let (text, length) = (source.as_ptr().cast::<c_char>(), source.len());
        // SAFETY: one source with its length.
        let program = unsafe { (functions.program)(context, 1, &raw const text, &raw const length, &raw mut status) };
        done("program", status)?;
        let options = c"-cl-std=CL1.2";
        // SAFETY: the program and its device.
        let status =
            unsafe { (functions.build)(program, 1, &raw const device, options.as_ptr(), null_mut(), null_mut()) };
        done("build", status)?;
        let buffer = |bytes| {
            let mut status = 0;
            // SAFETY: the context; the memory is PoCL's.
            let buffer = unsafe { (functions.buffer)(context, READ_WRITE, bytes, null_mut(), &raw mut status) };
            done("buffer", status).map(|()| buffer)
        };
        let (from, to) = (buffer(IN_BYTES)?, buffer(OUT_BYTES)?);
        Ok(Pocl { functions, queue, program, from, to })
    }

    /// Gives the kernels their data.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.fill(self.from, &bytes[..bytes.len().min(IN_BYTES)])
    }

    fn fill(&self, buffer: Handle, bytes: &[u8]) -> Result<()> {
        let (len, from) = (bytes.len(), bytes.as_ptr().cast());
        // SAFETY: a buffer that has as many bytes, and the caller's bytes, until the call returns.
        done("write", unsafe { (self.functions.write)(self.queue, buffer, 1, 0, len, from, 0, null_mut(), null_mut()) })
    }

    /// Runs a kernel; the time, and what it has written.
    pub fn run(&mut self, case: &Case, found: &mut [u8]) -> Result<Duration> {
        if found.len() > OUT_BYTES {
            bail!("the result has no room");
        }
        self.fill(self.to, &vec![0; found.len()])?;
        let name = CString::new(case.work.kernel())?;
        let functions = &self.functions;
        let mut status = 0;
        // SAFETY: the program, and a name that ends with a zero.
        let kernel = unsafe { (functions.kernel)(self.program, name.as_ptr(), &raw mut status) };
        done("kernel", status)?;
        for (index, buffer) in [&self.from, &self.to].into_iter().enumerate() {
            // SAFETY: a handle, which is copied.
            let status = unsafe {
                (functions.argument)(kernel, number_of(index), size_of::<Handle>(), (&raw const *buffer).cast())
            };
            done("argument", status)?;
        }
        for (index, number) in case.numbers.iter().enumerate() {
            // SAFETY: a number, which is copied.
            let status = unsafe { (functions.argument)(kernel, number_of(index + 2), 4, (&raw const *number).cast()) };
            done("argument", status)?;
        }
        let (grid, group) = (case.grid.map(|items| items as usize), case.group.map(usize::from));
        let begin = Instant::now();
        // SAFETY: the kernel has its arguments; three sizes of the grid and of a group.
        let status = unsafe {
            (functions.launch)(self.queue, kernel, 3, null(), grid.as_ptr(), group.as_ptr(), 0, null_mut(), null_mut())
        };
        done("launch", status)?;
        // SAFETY: the queue.
        done("finish", unsafe { (functions.finish)(self.queue) })?;
        let time = begin.elapsed();
        let (len, to) = (found.len(), found.as_mut_ptr().cast());
        // SAFETY: a buffer that has as many bytes, and room for them, until the call returns.
        let status = unsafe { (functions.read)(self.queue, self.to, 1, 0, len, to, 0, null_mut(), null_mut()) };
        done("read", status)?;
        Ok(time)
    }
}

/// An argument's number, of a handful.
fn number_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
