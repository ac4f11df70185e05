// SPDX-License-Identifier: Apache-2.0
//
// Where this library lies beside LibTorch's others, LibTorch is a ROCm build for Keirin. There is nothing in it.
