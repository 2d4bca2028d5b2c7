/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * RCCL's collectives among GPUs of one process, for wheels that are linked with librccl.so.1: Debian
 * has no RCCL for HIP 6.
 *
 * The threads of all ranks meet in each call. A rank waits for its stream, copies its numbers to the
 * host, meets the others, makes its own result of all numbers, and copies that to its GPU. So a call
 * returns when its result is there, which a caller cannot tell from one on the stream.
 *
 * XLA captures the work of a GPU into a graph while another GPU's thread is in a call here. HIP
 * gives such a capture up when any thread in the default mode waits or uses the default stream. So
 * a call copies on its caller's stream, in the relaxed mode.
 *
 * The mutex guards the list of groups and their members. A group's numbers are written before a
 * meeting by the rank that they belong to, and read behind it by all.
 *
 * Limits: one thread a rank; sums, products, least and greatest of 32-bit and 64-bit numbers;
 * nothing is sent from rank to rank.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK, UNHANDLED = 1, SYSTEM = 2, NOT_HERE = 3, ARGUMENT = 4 };
enum { RANKS = 16, TO_HOST = 2, TO_DEVICE = 1, RELAXED = 2 };
enum type { INT32 = 2, UINT32, INT64, UINT64, HALF, SINGLE, DOUBLE };
enum fold { SUM, PRODUCT, GREATEST, LEAST };

/* HIP's. */
int hipStreamSynchronize(void *stream);
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int hipThreadExchangeStreamCaptureMode(int *mode);

struct id {
    char bytes[128];
};

struct group {
    struct id id;
    int ranks;
    int members;
    pthread_barrier_t meeting;
    char *numbers[RANKS];
    int failed[RANKS];
    struct group *next;
};

struct communicator {
    struct group *group;
    int rank;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups;

int ncclGetVersion(int *version)
{
    *version = 22005;
    return OK;
}

int ncclGetUniqueId(struct id *id)
{
    static uint64_t last;
    pthread_mutex_lock(&lock);
    uint64_t number = ++last;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &number, sizeof number);
    return OK;
}

/* The group of an id, made for its first member. */
static struct group *joined(const struct id *id, int ranks)
{
    for (struct group *group = groups; group; group = group->next)
        if (!memcmp(&group->id, id, sizeof *id))
            return group->ranks == ranks && group->members++ < ranks ? group : NULL;
    struct group *group = calloc(1, sizeof *group);
    if (!group || pthread_barrier_init(&group->meeting, NULL, (unsigned)ranks)) {
        free(group);
        return NULL;
    }
    *group = (struct group){ .id = *id, .ranks = ranks, .members = 1, .meeting = group->meeting, .next = groups };
    groups = group;
    return group;
}

int ncclCommInitRank(struct communicator **to, int ranks, struct id id, int rank)
{
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return ARGUMENT;
    struct communicator *communicator = calloc(1, sizeof *communicator);
    pthread_mutex_lock(&lock);
    struct group *group = communicator ? joined(&id, ranks) : NULL;
    pthread_mutex_unlock(&lock);
    if (!group) {
        free(communicator);
        return SYSTEM;
    }
    *communicator = (struct communicator){ group, rank };
    *to = communicator;
    return OK;
}

int ncclCommInitRankConfig(struct communicator **to, int ranks, struct id id, int rank, void *configuration)
{
    (void)configuration;
    return ncclCommInitRank(to, ranks, id, rank);
}

/* The group stays: others may still be on their way out of its last meeting. */
int ncclCommDestroy(struct communicator *communicator)
{
    free(communicator);
    return OK;
}

int ncclCommAbort(struct communicator *communicator)
{
    return ncclCommDestroy(communicator);
}

int ncclCommCount(const struct communicator *communicator, int *count)
{
    *count = communicator->group->ranks;
    return OK;
}

int ncclCommGetAsyncError(struct communicator *communicator, int *error)
{
    (void)communicator;
    *error = OK;
    return OK;
}

int ncclGroupStart(void)
{
    return OK;
}

int ncclGroupEnd(void)
{
    return OK;
}

static size_t size_of(int type)
{
    switch (type) {
    case INT32:
    case UINT32:
    case SINGLE:
        return 4;
    case INT64:
    case UINT64:
    case DOUBLE:
        return 8;
    default:
        return 0;
    }
}

#define FOLD(name, kind)                                                      \
    static void name(kind *to, const kind *from, size_t count, int fold)      \
    {                                                                         \
        for (size_t at = 0; at < count; at++) {                               \
            const kind a = to[at], b = from[at];                              \
            to[at] = fold == SUM       ? a + b                                \
                     : fold == PRODUCT ? a * b                                \
                     : fold == LEAST   ? (b < a ? b : a)                      \
                                       : (b > a ? b : a);                     \
        }                                                                     \
    }
FOLD(fold_int32, int32_t)
FOLD(fold_uint32, uint32_t)
FOLD(fold_int64, int64_t)
FOLD(fold_uint64, uint64_t)
FOLD(fold_single, float)
FOLD(fold_double, double)

static void fold(void *to, const void *from, size_t count, int type, int how)
{
    switch (type) {
    case INT32:
        return fold_int32(to, from, count, how);
    case UINT32:
        return fold_uint32(to, from, count, how);
    case INT64:
        return fold_int64(to, from, count, how);
    case UINT64:
        return fold_uint64(to, from, count, how);
    case SINGLE:
        return fold_single(to, from, count, how);
    default:
        return fold_double(to, from, count, how);
    }
}

/* Copies behind the stream's work, and waits for it. Returns HIP's error. */
static int copy(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    int mode = RELAXED;
    int failed = hipThreadExchangeStreamCaptureMode(&mode);
    if (failed)
        return failed;
    failed = hipMemcpyAsync(to, from, bytes, kind, stream);
    if (!failed)
        failed = hipStreamSynchronize(stream);
    const int back = hipThreadExchangeStreamCaptureMode(&mode);
    return failed ? failed : back;
}

/*
 * Each rank brings `given` bytes. `make` makes the caller's result of all of them, of `made` bytes.
 * A rank that fails still comes to both meetings, and then all ranks fail.
 */
static int together(struct communicator *communicator, const void *from, size_t given, void *to, size_t made,
                    void *stream, void (*make)(struct communicator *, char *result, void *how), void *how)
{
    struct group *group = communicator->group;
    const int rank = communicator->rank;
    char *result = malloc(made ? made : 1);
    group->numbers[rank] = malloc(given ? given : 1);
    group->failed[rank] = !result || !group->numbers[rank] || copy(group->numbers[rank], from, given, TO_HOST, stream);
    pthread_barrier_wait(&group->meeting);
    int failed = 0;
    for (int other = 0; other < group->ranks; other++)
        failed |= group->failed[other];
    if (!failed)
        make(communicator, result, how);
    pthread_barrier_wait(&group->meeting);
    free(group->numbers[rank]);
    if (!failed)
        failed = copy(to, result, made, TO_DEVICE, stream);
    free(result);
    return failed ? UNHANDLED : OK;
}

struct reduction {
    size_t first, count;
    int type, fold;
};

/* In the order of ranks, so that each has the same bits. */
static void reduce(struct communicator *communicator, char *result, void *how)
{
    const struct reduction *wanted = how;
    const struct group *group = communicator->group;
    const size_t size = size_of(wanted->type), first = wanted->first * size;
    memcpy(result, group->numbers[0] + first, wanted->count * size);
    for (int rank = 1; rank < group->ranks; rank++)
        fold(result, group->numbers[rank] + first, wanted->count, wanted->type, wanted->fold);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, struct communicator *communicator,
                  void *stream)
{
    struct reduction wanted = { 0, count, type, how };
    const size_t bytes = count * size_of(type);
    if (!size_of(type) || how > LEAST)
        return ARGUMENT;
    return together(communicator, from, bytes, to, bytes, stream, reduce, &wanted);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int how,
                      struct communicator *communicator, void *stream)
{
    struct reduction wanted = { (size_t)communicator->rank * count, count, type, how };
    const size_t bytes = count * size_of(type);
    if (!size_of(type) || how > LEAST)
        return ARGUMENT;
    return together(communicator, from, bytes * (size_t)communicator->group->ranks, to, bytes, stream, reduce,
                    &wanted);
}

static void gather(struct communicator *communicator, char *result, void *how)
{
    const size_t bytes = *(const size_t *)how;
    for (int rank = 0; rank < communicator->group->ranks; rank++)
        memcpy(result + (size_t)rank * bytes, communicator->group->numbers[rank], bytes);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *communicator,
                  void *stream)
{
    /* Numbers of one and two bytes, too: they are only moved. */
    size_t bytes = count * (size_of(type) ? size_of(type) : type < INT32 ? 1 : 2);
    return together(communicator, from, bytes, to, bytes * (size_t)communicator->group->ranks, stream, gather,
                    &bytes);
}

const char *ncclGetErrorString(int code)
{
    return code == OK ? "no error" : "a collective among GPUs of one process has failed";
}

const char *ncclGetLastError(void *communicator)
{
    (void)communicator;
    return "";
}

#define ANSWER(function) int function(void) { return NOT_HERE; }
ANSWER(ncclBroadcast)
ANSWER(ncclCommDeregister)
ANSWER(ncclCommRegister)
ANSWER(ncclCommSplit)
ANSWER(ncclRecv)
ANSWER(ncclReduce)
ANSWER(ncclSend)
