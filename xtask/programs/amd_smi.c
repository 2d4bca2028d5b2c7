/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Replaces AMD's library for reading sensors (libamd_smi.so.26), which Debian does not have. The
 * functions that ROCR's tests call return "not supported". The tests print clocks and temperatures
 * with it, and judge nothing by them.
 */

/* As AMD's header numbers it. */
enum { NOT_SUPPORTED = 2 };

#define NOT_HERE(function) int function(void) { return NOT_SUPPORTED; }

NOT_HERE(amdsmi_get_clk_freq)
NOT_HERE(amdsmi_get_gpu_board_info)
NOT_HERE(amdsmi_get_gpu_fan_speed)
NOT_HERE(amdsmi_get_gpu_fan_speed_max)
NOT_HERE(amdsmi_get_gpu_id)
NOT_HERE(amdsmi_get_gpu_overdrive_level)
NOT_HERE(amdsmi_get_gpu_perf_level)
NOT_HERE(amdsmi_get_processor_handles)
NOT_HERE(amdsmi_get_processor_type)
NOT_HERE(amdsmi_get_socket_handles)
NOT_HERE(amdsmi_get_temp_metric)
NOT_HERE(amdsmi_init)
NOT_HERE(amdsmi_shut_down)
