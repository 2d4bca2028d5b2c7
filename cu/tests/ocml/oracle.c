// SPDX-License-Identifier: GPL-2.0 OR MIT
// What a function is: MPFR's value with 300 bits. Called with a function's name; reads pairs of doubles, the arguments, and
// writes pairs of doubles, whose sum is the value.
#include <mpfr.h>
#include <stdio.h>
#include <string.h>

typedef int one(mpfr_t, const mpfr_t, mpfr_rnd_t);
typedef int two(mpfr_t, const mpfr_t, const mpfr_t, mpfr_rnd_t);

static int reciprocal(mpfr_t r, const mpfr_t x, mpfr_rnd_t round) { return mpfr_ui_div(r, 1, x, round); }
// Of a negative zero it is the negative infinity, as IEEE 754 has it; MPFR has the positive one.
static int reciprocal_root(mpfr_t r, const mpfr_t x, mpfr_rnd_t round)
{
    if (!mpfr_zero_p(x))
        return mpfr_rec_sqrt(r, x, round);
    mpfr_set_inf(r, mpfr_signbit(x) ? -1 : 1);
    return 0;
}

static int turn_sin(mpfr_t r, const mpfr_t x, mpfr_rnd_t round) { return mpfr_sinu(r, x, 1, round); }
static int turn_cos(mpfr_t r, const mpfr_t x, mpfr_rnd_t round) { return mpfr_cosu(r, x, 1, round); }

static const struct { const char *name; one *call; } ones[] = {
    { "sin", mpfr_sin }, { "cos", mpfr_cos }, { "tan", mpfr_tan }, { "asin", mpfr_asin }, { "acos", mpfr_acos },
    { "atan", mpfr_atan }, { "sinh", mpfr_sinh }, { "cosh", mpfr_cosh }, { "tanh", mpfr_tanh }, { "asinh", mpfr_asinh },
    { "acosh", mpfr_acosh }, { "atanh", mpfr_atanh }, { "sinpi", mpfr_sinpi }, { "cospi", mpfr_cospi },
    { "tanpi", mpfr_tanpi }, { "asinpi", mpfr_asinpi }, { "acospi", mpfr_acospi }, { "atanpi", mpfr_atanpi },
    { "exp", mpfr_exp }, { "exp2", mpfr_exp2 }, { "exp10", mpfr_exp10 }, { "expm1", mpfr_expm1 }, { "log", mpfr_log },
    { "log2", mpfr_log2 }, { "log10", mpfr_log10 }, { "log1p", mpfr_log1p }, { "cbrt", mpfr_cbrt }, { "erf", mpfr_erf },
    { "erfc", mpfr_erfc }, { "tgamma", mpfr_gamma }, { "sqrt", mpfr_sqrt }, { "rsqrt", reciprocal_root },
    { "rcp", reciprocal }, { "turnsin", turn_sin }, { "turncos", turn_cos },
};
static const struct { const char *name; two *call; } twos[] = {
    { "pow", mpfr_pow }, { "atan2", mpfr_atan2 }, { "hypot", mpfr_hypot }, { "fmod", mpfr_fmod },
    { "remainder", mpfr_remainder }, { "div", mpfr_div }, { "fdim", mpfr_dim },
};

int main(int count, char **arguments)
{
    one *first = NULL;
    two *second = NULL;
    for (size_t i = 0; count > 1 && i < sizeof ones / sizeof *ones; i++)
        if (!strcmp(ones[i].name, arguments[1]))
            first = ones[i].call;
    for (size_t i = 0; count > 1 && i < sizeof twos / sizeof *twos; i++)
        if (!strcmp(twos[i].name, arguments[1]))
            second = twos[i].call;
    if (!first && !second)
        return 2;
    mpfr_t x, y, value, rest;
    mpfr_inits2(300, x, y, value, rest, (mpfr_ptr)0);
    double pair[2];
    while (fread(pair, sizeof pair, 1, stdin) == 1) {
        mpfr_set_d(x, pair[0], MPFR_RNDN);
        mpfr_set_d(y, pair[1], MPFR_RNDN);
        if (first)
            first(value, x, MPFR_RNDN);
        else
            second(value, x, y, MPFR_RNDN);
        pair[0] = mpfr_get_d(value, MPFR_RNDN);
        mpfr_sub_d(rest, value, pair[0], MPFR_RNDN);
        pair[1] = mpfr_number_p(rest) ? mpfr_get_d(rest, MPFR_RNDN) : 0;
        fwrite(pair, sizeof pair, 1, stdout);
    }
    return 0;
}
