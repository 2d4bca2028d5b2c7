# SPDX-License-Identifier: GPL-2.0 OR MIT
# Read by cmake before the OpenCL CTS's own lists: directories that a copy of its source does not
# have are passed over. Whoever keeps a copy may leave out the tests of images and of SPIR.
macro(add_subdirectory directory)
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${directory}/CMakeLists.txt")
    _add_subdirectory(${directory} ${ARGN})
  endif()
endmacro()

# What the tests name and the registry of OpenCL got after Debian 13's headers of 2024-10-24: formats
# of images, memory that does not change, and questions of a later version.
add_compile_definitions(
  CL_UNORM_INT10X6_EXT=0x10E1 CL_UNSIGNED_INT10X6_EXT=0x10E6 CL_UNSIGNED_INT12X4_EXT=0x10E7
  CL_UNSIGNED_INT14X2_EXT=0x10E8 CL_UNORM_INT12X4_EXT=0x10E9 CL_UNORM_INT14X2_EXT=0x10EA
  CL_MEM_IMMUTABLE_EXT=0x40 CL_DEVICE_SPIRV_EXTENDED_INSTRUCTION_SETS_KHR=0x12B9
  CL_DEVICE_SPIRV_EXTENSIONS_KHR=0x12BA CL_DEVICE_SPIRV_CAPABILITIES_KHR=0x12BB)
