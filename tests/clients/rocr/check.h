/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The ROCR clients wait by these functions, and exit by them after an unexpected result. */
#pragma once

#include <hsa/hsa.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what, hsa_status_t status)
{
    const char *text = "?";
    hsa_status_string(status, &text);
    printf("FAILED: %s: %s\n", what, text);
    fflush(stdout);
    _Exit(1);
}

#define CHECK(call)                          \
    do {                                     \
        hsa_status_t status_ = (call);       \
        if (status_ != HSA_STATUS_SUCCESS)   \
            fail(#call, status_);            \
    } while (0)

#define REQUIRE(condition, ...)              \
    do {                                     \
        if (!(condition)) {                  \
            printf("FAILED: " __VA_ARGS__);  \
            printf("\n");                    \
            fflush(stdout);                  \
            _Exit(1);                        \
        }                                    \
    } while (0)

/* Until what the signal is for has been done. */
static void wait_for(hsa_signal_t signal)
{
    /* Long: machines may be slow, what never ends must still be told. */
    uint64_t ticks = 0;
    CHECK(hsa_system_get_info(HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY, &ticks));
    hsa_signal_value_t value =
        hsa_signal_wait_scacquire(signal, HSA_SIGNAL_CONDITION_LT, 1, ticks * 60, HSA_WAIT_STATE_BLOCKED);
    REQUIRE(value == 0, "it did not end well: its signal is %ld", (long)value);
}
