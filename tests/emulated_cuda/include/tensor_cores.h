#pragma once

#include <cstdint>
#include <cuda_runtime.h>

/// @file
/// What tensor cores do, on the CPU: the instructions of PTX that Rankwise uses, each called by all threads of a warp.

namespace emulated_cuda {

/// ldmatrix.x4: four matrices of 8 x 8 numbers of 16 bits. Lane 8 m + i says where line i of matrix m stands; lane 4 i + j
/// gets numbers 2 j and 2 j + 1 of line i of each matrix, or of its column i with @p transposed.
/// @param row  16 bytes, aligned to 16; read before the thread waits for the others.
void load_matrices(unsigned (&to)[4], const unsigned (&row)[4], bool transposed,
                   const char* file = __builtin_FILE(), unsigned line = __builtin_LINE());

/// mma.m16n8k16, twice: sums += left right, bf16 with f32 sums. With i = lane / 4 and j = lane % 4 the halves of words are
/// @param sums   (16, 16): [n][r][c] is line i + 8 r, column 8 n + 2 j + c.
/// @param left   (16, 16): half c of word r + 2 n is line i + 8 r, column 8 n + 2 j + c.
/// @param right  (16, 16): half c of word r + 2 n is line 8 r + 2 j + c, column i + 8 n.
void multiply_matrices(float (&sums)[2][2][2], const unsigned (&left)[4], const unsigned (&right)[4],
                       const char* file = __builtin_FILE(), unsigned line = __builtin_LINE());

}  // namespace emulated_cuda
