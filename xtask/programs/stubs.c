/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Replaces libraries that wheels of PyPI are linked with and Debian does not have. Each is compiled
 * with one of these names defined. A function of a tracer returns 0, as one that traces nothing; a
 * function of collectives returns "not supported". Others have no function that is called.
 */

#define ANSWER(function, code) int function(void) { return code; }

#ifdef ROCTRACER
ANSWER(roctracer_start, 0)
ANSWER(roctracer_stop, 0)
#endif

#ifdef RCCL
/* ncclInternalError, as RCCL's header numbers it. */
enum { NOT_HERE = 3 };
ANSWER(ncclAllGather, NOT_HERE)
ANSWER(ncclAllReduce, NOT_HERE)
ANSWER(ncclBroadcast, NOT_HERE)
ANSWER(ncclCommAbort, NOT_HERE)
ANSWER(ncclCommCount, NOT_HERE)
ANSWER(ncclCommDeregister, NOT_HERE)
ANSWER(ncclCommDestroy, NOT_HERE)
ANSWER(ncclCommGetAsyncError, NOT_HERE)
ANSWER(ncclCommInitRank, NOT_HERE)
ANSWER(ncclCommInitRankConfig, NOT_HERE)
ANSWER(ncclCommRegister, NOT_HERE)
ANSWER(ncclCommSplit, NOT_HERE)
ANSWER(ncclGetUniqueId, NOT_HERE)
ANSWER(ncclGroupEnd, NOT_HERE)
ANSWER(ncclGroupStart, NOT_HERE)
ANSWER(ncclRecv, NOT_HERE)
ANSWER(ncclReduce, NOT_HERE)
ANSWER(ncclReduceScatter, NOT_HERE)
ANSWER(ncclSend, NOT_HERE)
const char *ncclGetErrorString(int code) { return code ? "there is no RCCL" : "no error"; }
const char *ncclGetLastError(void *communicator) { return communicator ? "there is no RCCL" : ""; }
#endif
