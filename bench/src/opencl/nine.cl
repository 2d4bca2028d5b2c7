// SPDX-License-Identifier: GPL-2.0 OR MIT
// The nine kernels that `vkfd bench opencl` runs on the software GPU and, by another OpenCL, on the processor. The GPU's form has
// no runtime's library: `cargo xtask kernels` compiles it for gfx900. All have the same arguments. What is to be equal to the bit
// says each fused operation itself.

#pragma OPENCL FP_CONTRACT OFF
#ifdef __AMDGCN__
#define ITEM_X __builtin_amdgcn_workitem_id_x()
#define ITEM_Y __builtin_amdgcn_workitem_id_y()
#define GROUP_X __builtin_amdgcn_workgroup_id_x()
#define GROUP_Y __builtin_amdgcn_workgroup_id_y()
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define FMA64(a, b, c) __builtin_fma(a, b, c)
#define RSQRT(x) __builtin_amdgcn_rsqf(x)
#define SQRT(x) __builtin_amdgcn_sqrtf(x)
#define RECIPROCAL(x) __builtin_amdgcn_rcpf(x)
#define EXP2(x) __builtin_amdgcn_exp2f(x)
#define LOG2(x) __builtin_amdgcn_logf(x)
#define ABS(x) __builtin_fabsf(x)
#define COUNT(p) __opencl_atomic_fetch_add((local atomic_uint *)(p), 1, memory_order_relaxed, memory_scope_work_group)
#define COUNT_ALL(p, n) __opencl_atomic_fetch_add((global atomic_uint *)(p), n, memory_order_relaxed, memory_scope_device)
static void meet(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#define MEET() meet()
#else
#define ITEM_X ((uint)get_local_id(0))
#define ITEM_Y ((uint)get_local_id(1))
#define GROUP_X ((uint)get_group_id(0))
#define GROUP_Y ((uint)get_group_id(1))
#define FMA(a, b, c) fma(a, b, c)
#define FMA64(a, b, c) fma(a, b, c)
#define RSQRT(x) native_rsqrt(x)
#define SQRT(x) native_sqrt(x)
#define RECIPROCAL(x) native_recip(x)
#define EXP2(x) native_exp2(x)
#define LOG2(x) native_log2(x)
#define ABS(x) fabs(x)
#define COUNT(p) atomic_inc((volatile local uint *)(p))
#define COUNT_ALL(p, n) atomic_add((volatile global uint *)(p), n)
#define MEET() barrier(CLK_LOCAL_MEM_FENCE)
#endif

#define KERNEL(name, x, y) \
    __attribute__((reqd_work_group_size(x, y, 1))) kernel void name(global const uint *from, global uint *to, uint n, uint m)
#define LINE 256
#define LINE_ITEM (GROUP_X * LINE + ITEM_X)

// n bodies: mass and place of each. The forces on each of them.
KERNEL(nbody, LINE, 1)
{
    global const float4 *bodies = (global const float4 *)from;
    const float4 me = bodies[LINE_ITEM];
    float x = 0, y = 0, z = 0;
    for (uint i = 0; i < n; i++) {
        const float4 body = bodies[i];
        const float dx = body.x - me.x, dy = body.y - me.y, dz = body.z - me.z;
        const float r = RSQRT(FMA(dx, dx, FMA(dy, dy, FMA(dz, dz, 0.01f))));
        const float s = body.w * r * r * r;
        x = FMA(dx, s, x);
        y = FMA(dy, s, y);
        z = FMA(dz, s, z);
    }
    ((global float4 *)to)[LINE_ITEM] = (float4)(x, y, z, 0);
}

// Rotations, sums, products and bits, n rounds of them.
KERNEL(integer_mix, LINE, 1)
{
    const uint i = LINE_ITEM;
    uint a = i * 2654435761u, b = i ^ 0x9e3779b9u;
    for (uint round = 0; round < n; round++) {
        a = (a << 7 | a >> 25) ^ b;
        b = (b >> 3) + a * 5;
        a += (b & 0xffff) | (a << 16);
        b ^= a * 0x85ebca6bu;
    }
    to[i] = a ^ b;
}

// The product of matrices of n rows and columns: tiles through LDS.
#define TILE 16
KERNEL(tiled_product, TILE, TILE)
{
    local float tile_a[TILE][TILE], tile_b[TILE][TILE];
    global const float *a = (global const float *)from, *b = a + n * n;
    const uint x = ITEM_X, y = ITEM_Y, column = GROUP_X * TILE + x, row = GROUP_Y * TILE + y;
    float sum = 0;
    for (uint k = 0; k < n; k += TILE) {
        tile_a[y][x] = a[row * n + k + x];
        tile_b[y][x] = b[(k + y) * n + column];
        MEET();
        for (uint i = 0; i < TILE; i++)
            sum = FMA(tile_a[y][i], tile_b[i][x], sum);
        MEET();
    }
    ((global float *)to)[row * n + column] = sum;
}

// Rounds until a point of a picture of n columns is beyond, m at most.
KERNEL(mandelbrot, LINE, 1)
{
    const uint i = LINE_ITEM;
    const float step = 3.0f / 256.0f, cx = FMA((float)(i % n), step, -2.0f), cy = FMA((float)(i / n), step, -1.5f);
    float x = 0, y = 0;
    uint round = 0;
    while (round < m && FMA(x, x, y * y) < 4.0f) {
        const float next = FMA(x, x, FMA(-y, y, cx));
        y = FMA(2 * x, y, cy);
        x = next;
        round++;
    }
    to[i] = round;
}

static float normal(float d)
{
    const float k = RECIPROCAL(FMA(0.2316419f, ABS(d), 1.0f));
    const float sum = FMA(k, FMA(k, FMA(k, FMA(k, 1.330274429f, -1.821255978f), 1.781477937f), -0.356563782f), 0.31938153f);
    const float c = 0.39894228f * EXP2(-0.72134752f * d * d) * (k * sum);
    return d > 0 ? 1.0f - c : c;
}

// Prices of options, m times in a row.
KERNEL(black_scholes, LINE, 1)
{
    const uint i = LINE_ITEM;
    global const float *in = (global const float *)from;
    global float *call = (global float *)to, *put = call + n;
    const float stock = in[i], strike = in[n + i];
    float years = in[2 * n + i];
    for (uint round = 0; round < m; round++) {
        const float root = SQRT(years) * 0.3f;
        const float d1 = FMA(LOG2(stock * RECIPROCAL(strike)), 0.69314718f, 0.065f * years) * RECIPROCAL(root);
        const float d2 = d1 - root, discount = EXP2(-0.028853901f * years);
        const float c1 = normal(d1), c2 = normal(d2);
        const float price = FMA(stock, c1, -strike * discount * c2);
        call[i] = price;
        put[i] = FMA(strike * discount, 1.0f - c2, -stock * (1.0f - c1));
        years = FMA(0.01f, ABS(price), years);
    }
}

// Sums of m numbers, one for each group of n.
KERNEL(reduction, LINE, 1)
{
    local float part[LINE];
    global const float *in = (global const float *)from;
    float sum = 0;
    for (uint i = LINE_ITEM; i < m; i += n * LINE)
        sum += in[i];
    part[ITEM_X] = sum;
    MEET();
    for (uint step = LINE / 2; step > 0; step >>= 1) {
        if (ITEM_X < step)
            part[ITEM_X] += part[ITEM_X + step];
        MEET();
    }
    if (ITEM_X == 0)
        ((global float *)to)[GROUP_X] = part[0];
}

// How often the low byte of m words has each value; n groups.
KERNEL(histogram, LINE, 1)
{
    local uint bins[LINE];
    bins[ITEM_X] = 0;
    MEET();
    for (uint i = LINE_ITEM; i < m; i += n * LINE)
        COUNT(&bins[from[i] & 255]);
    MEET();
    COUNT_ALL(&to[ITEM_X], bins[ITEM_X]);
}

// A matrix of n rows and m columns, which lie one after the other, times a vector behind it.
KERNEL(dgemv, LINE, 1)
{
    global const double *a = (global const double *)from, *x = a + (ulong)n * m;
    const uint i = LINE_ITEM;
    double sum = 0;
    for (uint k = 0; k < m; k++)
        sum = FMA64(a[k * n + i], x[k], sum);
    ((global double *)to)[i] = sum;
}

// Means of five points, n columns and m rows of them; the border stays.
KERNEL(stencil, 64, 4)
{
    global const float *in = (global const float *)from;
    const int x = GROUP_X * 64 + ITEM_X, y = GROUP_Y * 4 + ITEM_Y, w = n, h = m;
    if (x > 0 && y > 0 && x < w - 1 && y < h - 1)
        ((global float *)to)[y * w + x] =
            0.2f * (in[y * w + x] + in[y * w + x - 1] + in[y * w + x + 1] + in[(y - 1) * w + x] + in[(y + 1) * w + x]);
}
