#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Compiles the planted and the published bugs for all targets. Needs clang-19 and lld-19.
set -e
cd "$(dirname "$0")"
for source in planted published; do
    for target in gfx900 gfx90a gfx942 gfx1030 gfx1100; do
        clang-19 -x cl -cl-std=CL2.0 -O1 -w -target amdgcn-amd-amdhsa -mcpu=$target -nogpulib -fuse-ld=lld-19 \
            -mcode-object-version=5 -Wl,-s -o "${1:-.}/$source-$target.co" $source.cl
    done
done
