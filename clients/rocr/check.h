/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* How the ROCR clients end at what they did not expect. */
#pragma once

#include <hsa/hsa.h>
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
