# SPDX-License-Identifier: GPL-2.0 OR MIT
# AMD's kfdtest with its libhsakmt in it, from the source of Debian's rocr-runtime: `make -f kfdtest.mk SOURCE=DIR`, where
# DIR is the archive's libhsakmt/. The archive has no GoogleTest of its own, as Debian has taken it out; Debian's is used.

vpath %.c $(SOURCE)/src
vpath %.cpp $(SOURCE)/tests/kfdtest/src

LIBRARY := $(patsubst $(SOURCE)/src/%.c,%.o,$(wildcard $(SOURCE)/src/*.c))
TESTS := $(patsubst $(SOURCE)/tests/kfdtest/src/%.cpp,%.o,$(wildcard $(SOURCE)/tests/kfdtest/src/*.cpp))
DRM := $(shell pkg-config --cflags libdrm libdrm_amdgpu)

CFLAGS := -O1 -w -fPIC -D_GNU_SOURCE -DHSAKMT_BUILD -I$(SOURCE)/include $(DRM)
CXXFLAGS := -O1 -w -std=gnu++17 -I$(SOURCE)/tests/kfdtest/include -I$(SOURCE)/include $(DRM) $(shell llvm-config-19 --cppflags)

program: $(TESTS) $(LIBRARY)
	$(CXX) -o $@ $^ -lgtest $(shell llvm-config-19 --ldflags) -lLLVM-19 $(shell pkg-config --libs libdrm libdrm_amdgpu) \
		-lpthread -lrt -lnuma
