/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * One of GCC's C torture tests on a GPU: TEST is its file. Its main is called from a target region. A test that is content returns 0 or
 * calls exit(0), from main as good as always; one that is not calls abort().
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma omp declare target
#define main test_main
#define exit(code) return (code)
#include TEST
#undef main
#undef exit
#pragma omp end declare target

int main(void)
{
	int result = -1;
	int on_host = 1;

#pragma omp target map(from : result, on_host)
	{
		result = ((int (*)(void))test_main)();
		on_host = omp_is_initial_device();
	}
	if (on_host) {
		puts("the test ran on the host");
		return 2;
	}
	printf("the test returned %d\n", result);
	return result != 0;
}
