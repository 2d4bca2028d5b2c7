// SPDX-License-Identifier: GPL-2.0 OR MIT
// For libraries that stand before HIP's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// A function of HIP's own, also where a plug-in has loaded HIP for itself alone.
static void *beneath(const char *name)
{
	static const char *const versions[] = {"libamdhip64.so.5", "libamdhip64.so.6"};
	void *function = dlsym(RTLD_NEXT, name);
	for (unsigned i = 0; i < sizeof versions / sizeof versions[0] && !function; i++) {
		void *hip = dlopen(versions[i], RTLD_LAZY | RTLD_NOLOAD);
		if (!hip)
			continue;
		function = dlsym(hip, name);
		dlclose(hip);
	}
	if (!function) {
		fprintf(stderr, "there is no %s\n", name);
		abort();
	}
	return function;
}
