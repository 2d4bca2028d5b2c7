// SPDX-License-Identifier: GPL-2.0 OR MIT
// What the kernels use of clang's AMD target, in OpenCL C 1.2, for Oclgrind. Its work-items are no
// waves: a fence is nothing, and atomic operations have no order. Kernels with assembly lose it.

#define __builtin_amdgcn_workitem_id_x() ((uint)get_local_id(0))
#define __builtin_amdgcn_workgroup_id_x() ((uint)get_group_id(0))
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_s_barrier() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define __builtin_amdgcn_sqrtf(x) sqrt(x)
#define atomic_uint uint
#define __opencl_atomic_fetch_add(at, n, order, scope) atomic_add(at, n)
#define __opencl_atomic_load(at, order, scope) atomic_or(at, 0)
#define __opencl_atomic_store(at, n, order, scope) atomic_xchg(at, n)
#define __opencl_atomic_compare_exchange_strong(at, seen, next, order, order_of_failure, scope) \
    ({ \
        uint _seen = *(seen); \
        *(seen) = atomic_cmpxchg(at, _seen, next); \
        *(seen) == _seen; \
    })
#define __asm__
#define volatile(...)
