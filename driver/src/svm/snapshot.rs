// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client can read of its SVM memory.
